//! Logger names. They are Nodepool's where a counterpart exists, and all start with `nodepool`, so that logging
//! configurations for Nodepool work here.

use super::entry::LogFields;

pub(super) fn logger(target: &str, fields: &LogFields) -> String {
    let provider = fields.text("provider");
    let of_provider = |name: &str, without: &str| match provider {
        Some(provider) => format!("{name}.{provider}"),
        None => without.to_owned(),
    };
    let Some(index) = target.strip_prefix("nodeyard") else {
        return target.replace("::", ".");
    };
    match index.split_once("::").unwrap_or((index, "")) {
        ("_launcher", module) => match module.split("::").next().unwrap_or_default() {
            "serve" => match fields.text("launcher") {
                Some(id) => format!("nodepool.driver.NodeRequestHandler[{id}]"),
                None => "nodepool.driver.NodeRequestHandler".to_owned(),
            },
            "launch" => of_provider("nodepool.StateMachineNodeLauncher", "nodepool.NodeLauncher"),
            "settle" => of_provider(
                "nodepool.StateMachineNodeDeleter",
                "nodepool.DeletedNodeWorker",
            ),
            "recover" | "history" => "nodepool.CleanupWorker".to_owned(),
            "roster" => "nodepool.driver.static.StaticNodeProvider".to_owned(),
            "dispatcher" => dispatcher(module, provider, fields.text("pool")),
            _ => "nodepool.NodePool".to_owned(),
        },
        ("_store", _) => "nodepool.zk.ZooKeeper".to_owned(),
        ("_api", module) if module.starts_with("statsd") => "nodepool.StatsReporter".to_owned(),
        ("_api", _) => "nodepool.WebApp".to_owned(),
        ("_builder", module) => dotted("nodepool.builder", module),
        ("", "commands::launcher::status_log") => "nodepool.stack_dump".to_owned(),
        ("", _) => "nodepool".to_owned(),
        (name, module) => {
            let name = name.trim_start_matches('_').replace("driver_", "driver.");
            dotted(&format!("nodepool.{name}"), module)
        }
    }
}

fn dispatcher(module: &str, provider: Option<&str>, pool: Option<&str>) -> String {
    match module {
        "dispatcher::upkeep" => "nodepool.CleanupWorker".to_owned(),
        "dispatcher::decide" => match (provider, pool) {
            (Some(provider), Some(pool)) => format!("nodepool.PoolWorker.{provider}-{pool}"),
            _ => "nodepool.PoolWorker".to_owned(),
        },
        _ => "nodepool.NodePool".to_owned(),
    }
}

fn dotted(name: &str, module: &str) -> String {
    if module.is_empty() {
        name.to_owned()
    } else {
        format!("{name}.{}", module.replace("::", "."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loggers_have_nodepools_names_or_are_below_nodepool() {
        let mut fields = LogFields::default();
        fields.rest.push(("provider", "cloud".into()));
        fields
            .rest
            .push(("launcher", "np01-PoolWorker.cloud-main-1".into()));
        for (target, name) in [
            (
                "nodeyard_launcher::serve::collect",
                "nodepool.driver.NodeRequestHandler[np01-PoolWorker.cloud-main-1]",
            ),
            (
                "nodeyard_launcher::launch",
                "nodepool.StateMachineNodeLauncher.cloud",
            ),
            (
                "nodeyard_launcher::settle",
                "nodepool.StateMachineNodeDeleter.cloud",
            ),
            (
                "nodeyard_launcher::dispatcher::upkeep",
                "nodepool.CleanupWorker",
            ),
            ("nodeyard_launcher", "nodepool.NodePool"),
            (
                "nodeyard_store::zookeeper::session",
                "nodepool.zk.ZooKeeper",
            ),
            (
                "nodeyard_driver_fake::client",
                "nodepool.driver.fake.client",
            ),
            ("nodeyard_config::reload", "nodepool.config.reload"),
            ("nodeyard::commands::up", "nodepool"),
            ("hyper::proto", "hyper.proto"),
        ] {
            assert_eq!(logger(target, &fields), name);
        }
        assert_eq!(
            logger("nodeyard_launcher::settle", &LogFields::default()),
            "nodepool.DeletedNodeWorker"
        );
    }
}
