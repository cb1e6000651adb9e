//! The Ansible roles of this project, played by ansible-core on pods of a real cluster and on a real SSH server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod bed;
mod image_store;
mod source;

use std::fs;

use serde_json::json;

use crate::bed::{Bed, HOSTS, MACHINE, PAIRED, PLAIN};
use crate::source::{LARGE, SMALL, Source};

const WORKSPACE: &str = "
- hosts: all
  gather_facts: false
  roles: [nodeyard-workspace]
";

/// They leave what an honest job leaves, and a trap for whoever publishes it.
const OUTPUT: &str = "
- hosts: all
  gather_facts: false
  tasks:
    - shell: |
        mkdir -p ~/zuul-output/logs/deep ~/zuul-output/artifacts
        cd ~/zuul-output
        echo '{{ inventory_hostname }}' > logs/deep/name
        ln -s /etc/hostname logs/trap
        ln -s /etc logs/traps
        mkfifo logs/fifo
        dd if=/dev/urandom of=artifacts/large bs=1M count=6 status=none
        sha256sum < artifacts/large > logs/digest
- hosts: all
  gather_facts: false
  roles: [nodeyard-fetch-output]
";

const REGISTRY: &str = "
- hosts: localhost
  gather_facts: false
  roles:
    - {role: nodeyard-registry, registry_command: [docker-registry, serve]}
  tasks:
    - import_role: {name: nodeyard-registry, tasks_from: use}
";

/// What there is to see of a repository on a node.
fn look(bed: &Bed, host: &str, repository: &str) -> Vec<String> {
    let script = format!(
        "cd {}/src/{repository} && git symbolic-ref --short HEAD && git rev-parse HEAD && git status --porcelain && \
         git for-each-ref --format='%(refname)' && sha256sum *",
        bed.root(host)
    );
    let said = bed.on(host, &script);
    said.lines().map(ToOwned::to_owned).collect()
}

fn objects(bed: &Bed, host: &str, repository: &str, what: &str) -> u64 {
    let script = format!(
        "git -C {}/src/{repository} count-objects -v",
        bed.root(host)
    );
    let said = bed.on(host, &script);
    let mut lines = said.lines();
    lines
        .find_map(|line| line.strip_prefix(&format!("{what}: ")))
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn on_pods_and_machines() {
    let Some(bed) = Bed::start() else { return };
    git_state_comes_and_output_goes_back(&bed);
    a_registry_is_for_those_who_have_its_token(&bed);
}

fn git_state_comes_and_output_goes_back(bed: &Bed) {
    let source = Source::create(&bed.path("work/src"));
    let zuul = json!({
        "executor": {"work_root": bed.path("work"), "log_root": bed.path("work/logs")},
        "projects": {LARGE: source.project(LARGE), SMALL: source.project(SMALL)},
    });
    // The image has an older state of one repository, and somebody else owns it.
    for host in [PLAIN, MACHINE] {
        bed.put_cache(host, &source, LARGE);
    }
    source.commit(LARGE, "later");
    let zuul = |variables: serde_json::Value| {
        let mut zuul = zuul.clone();
        zuul["projects"] = json!({LARGE: source.project(LARGE), SMALL: source.project(SMALL)});
        let mut all = json!({"zuul": zuul});
        all.as_object_mut()
            .unwrap()
            .extend(variables.as_object().unwrap().clone());
        all
    };

    let played = bed.play(WORKSPACE, &zuul(json!({"workspace_transport": "kubectl"})));
    assert!(played.succeeded(), "{}", played.output);
    for host in HOSTS {
        for repository in [LARGE, SMALL] {
            assert_eq!(
                look(bed, host, repository),
                source.look(repository),
                "{repository} on {host}\n{}",
                played.output
            );
        }
    }
    for host in [PLAIN, MACHINE] {
        assert_eq!(objects(bed, host, LARGE, "packs"), 1, "that of the cache");
        assert!(objects(bed, host, LARGE, "count") < 10);
    }

    // A second time it does nothing.
    let again = bed.play(WORKSPACE, &zuul(json!({"workspace_transport": "kubectl"})));
    assert!(again.succeeded(), "{}", again.output);
    for host in HOSTS {
        assert_eq!(again.changed(host), 0, "{host}\n{}", again.output);
    }

    // What has changed since is all that is sent, and the job's own litter goes. Nodeyard carries it where it can.
    source.rework(LARGE);
    for host in HOSTS {
        bed.on(
            host,
            &format!("echo litter > {}/src/{LARGE}/litter", bed.root(host)),
        );
    }
    let before = HOSTS.map(|host| objects(bed, host, LARGE, "size-pack"));
    bed.install_nodeyard();
    let changed = bed.play(WORKSPACE, &zuul(json!({})));
    assert!(changed.succeeded(), "{}", changed.output);
    for (host, before) in HOSTS.into_iter().zip(before) {
        assert_eq!(
            look(bed, host, LARGE),
            source.look(LARGE),
            "{host}\n{}",
            changed.output
        );
        assert_eq!(objects(bed, host, LARGE, "size-pack"), before, "{host}");
        assert_eq!(changed.changed(host), 1, "{host}\n{}", changed.output);
    }
    let calls = bed.calls_of_nodeyard();
    for host in [PLAIN, PAIRED] {
        assert!(calls.contains(host), "{calls}");
    }

    // Zuul says which commit it means.
    let mut wrong = zuul(json!({}));
    wrong["zuul"]["projects"][SMALL]["commit"] = json!("0".repeat(40));
    let refused = bed.play(WORKSPACE, &wrong);
    assert!(!refused.succeeded());
    assert!(
        refused.output.contains("instead of 000"),
        "{}",
        refused.output
    );
    let misspelt = bed.play(WORKSPACE, &zuul(json!({"workspace_transport": "pigeon"})));
    assert!(misspelt.output.contains("pigeon"), "{}", misspelt.output);

    let played = bed.play(OUTPUT, &zuul(json!({})));
    assert!(played.succeeded(), "{}", played.output);
    for host in HOSTS {
        let logs = bed.path("work/logs").join(host);
        let name = fs::read_to_string(logs.join("deep/name")).unwrap();
        assert_eq!(name.trim(), host);
        for trap in ["trap", "traps", "fifo"] {
            assert!(fs::symlink_metadata(logs.join(trap)).is_err(), "{trap}");
        }
        let artifact = bed.path("work/artifacts").join(host).join("large");
        let digest = fs::read_to_string(logs.join("digest")).unwrap();
        assert_eq!(source::sha256(&artifact), digest);
    }
}

fn a_registry_is_for_those_who_have_its_token(bed: &Bed) {
    let variables = json!({
        "registry_image": bed.image(),
        "zuul": {"resources": {"space": {"context": bed.context(), "namespace": bed.namespace()}}},
    });
    let played = bed.play(REGISTRY, &variables);
    assert!(played.succeeded(), "{}", played.output);
    let returned = bed.returned();
    assert_eq!(returned["data"]["zuul"]["pause"], true);
    let registry = &returned["data"]["nodeyard_registry"];
    let token = returned["secret_data"]["nodeyard_registry_token"]
        .as_str()
        .unwrap();
    assert!(!played.output.contains(token));

    // What a pod gets for an answer if it trusts a certificate.
    let ask = |call: &str, login: &str, trusted: &str| {
        let (method, url) = call.split_once(' ').unwrap();
        let trusted = trusted.replace('\n', "\\n");
        let script = format!(
            "python3 - <<'END'\n\
             import base64, ssl, urllib.request, urllib.error\n\
             request = urllib.request.Request('{url}', method='{method}')\n\
             request.add_header('Authorization', 'Basic ' + base64.b64encode(b'{login}').decode())\n\
             trust = ssl.create_default_context(cadata='{trusted}')\n\
             try:\n    print(urllib.request.urlopen(request, context=trust).status)\n\
             except urllib.error.HTTPError as error:\n    print(error.code)\n\
             except urllib.error.URLError as error:\n    print(error.reason.verify_message)\n\
             END"
        );
        bed.on(PLAIN, &script)
    };
    let ca = registry["ca"].as_str().unwrap();
    assert_eq!(bed.certificate_in("registry-access").trim(), ca.trim());
    let user = registry["user"].as_str().unwrap();
    let (known, unknown) = (format!("{user}:{token}"), format!("{user}:guess"));
    let look = format!("GET https://{}/v2/", registry["address"].as_str().unwrap());
    assert_eq!(ask(&look, &known, ca), "200");
    assert_eq!(ask(&look, &unknown, ca), "401");
    let distrust = ask(&look, &known, &bed.certificate_in("kube-root-ca.crt"));
    assert!(distrust.contains("self-signed"), "{distrust}");

    // The nodes of the cluster may pull, and nobody pushes through them.
    let images = registry["images"].as_str().unwrap();
    let port = images.strip_prefix("localhost:").unwrap();
    let node = format!("http://{}:{port}", bed.address_of_node());
    assert_eq!(ask(&format!("GET {node}/v2/"), &known, ca), "200");
    assert_eq!(ask(&format!("GET {node}/v2/"), &unknown, ca), "401");
    let push = format!("POST {node}/v2/image/blobs/uploads/");
    assert_eq!(ask(&push, &known, ca), "405");

    let again = bed.play(REGISTRY, &variables);
    assert!(again.succeeded(), "{}", again.output);
    assert_eq!(again.changed("localhost"), 0, "{}", again.output);
    assert_eq!(bed.returned(), returned);
}
