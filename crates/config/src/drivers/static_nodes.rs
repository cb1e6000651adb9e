//! `driver: static`: machines that exist already.

use std::rc::Rc;

use crate::check::FileReferences;
use crate::decode::{Decode, Decoder};
use crate::provider::{DriverSection, LabelRef, PoolCommon, PoolOuter, PoolRef, ProviderCommon};
use crate::section::{Describe, TypeInfo, section};
use crate::values::{Limit, Name, OneOrMany, Port, Seconds, Spanned};
use crate::yaml::{Map, YamlNode};

section! {
    /// Machines that exist already.
    pub struct Static (outer: ProviderCommon) {
        /// Groups of machines.
        "pools" pools: Vec<StaticPool> = default(Vec::<StaticPool>::new()) in (PoolOuter { priority: outer.priority, max_servers: Limit::NONE });
    }
}

section! {
    /// A group of machines.
    pub struct StaticPool (outer: PoolOuter) including common: PoolCommon (*outer) {
        /// The machines.
        "nodes" nodes: Vec<StaticNode> = default(Vec::<StaticNode>::new());
    }
}

section! {
    /// A machine. Name, user and port together are unique in the file.
    pub struct StaticNode (_outer: ()) checked by check_node {
        /// Host name or address.
        "name" name: Name = required;
        /// Labels it serves, as a list or as words.
        "labels" labels: Words = required;
        /// User to log in as.
        "username" username: String = default("zuul".to_owned());
        /// How long connecting may take.
        "timeout" timeout: Seconds = default(Seconds::new(5));
        /// Whether its host keys are scanned.
        "host-key-checking" host_key_checking: bool = default(true);
        /// Host keys it must show; without a scan, those handed on.
        "host-key" host_key: OneOrMany<String> = default(OneOrMany::<String>::default());
        /// Ansible's name for the kind of connection.
        "connection-type" connection_type: String = default("ssh".to_owned());
        /// Port of that connection.
        "connection-port" | "ssh-port" connection_port: Port = default(Port(22));
        /// Shell type for Ansible.
        "shell-type" shell_type: Option<String> = optional;
        /// Python interpreter for Ansible.
        "python-path" python_path: String = default("auto".to_owned());
        /// How many jobs may use it at once.
        "max-parallel-jobs" max_parallel_jobs: u64 = default(1);
    }
}

fn check_node(node: &StaticNode, map: &Map, decoder: &mut Decoder<'_>) {
    if node.name.is_empty()
        && let Some(entry) = map.set("name")
    {
        decoder.error(
            "bad-name",
            entry.value.span,
            "a machine needs a host name or address",
        );
    }
}

/// Names in a list, or as words of one text.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
#[serde(transparent)]
pub struct Words(pub Vec<Name>);

impl std::ops::Deref for Words {
    type Target = [Name];

    fn deref(&self) -> &[Name] {
        &self.0
    }
}

impl Decode<()> for Words {
    fn decode(node: &Rc<YamlNode>, (): &(), decoder: &mut Decoder<'_>) -> Option<Self> {
        let given = OneOrMany::<Name>::decode(node, &(), decoder)?;
        let words = given.iter().flat_map(|name| {
            name.split_whitespace().map(|word| Spanned {
                value: word.to_owned(),
                span: name.span,
            })
        });
        Some(Self(words.collect()))
    }
}

impl Describe for Words {
    fn type_info() -> TypeInfo {
        let mut type_info = OneOrMany::<String>::type_info();
        type_info.text = "list of text, or words".into();
        type_info
    }
}

impl DriverSection for Static {
    fn pools(&self) -> Vec<PoolRef<'_>> {
        let pools = self.pools.iter().map(|pool| PoolRef {
            common: &pool.common,
            labels: pool
                .nodes
                .iter()
                .flat_map(|node| node.labels.iter())
                .map(LabelRef::without_image)
                .collect(),
        });
        pools.collect()
    }

    /// Each machine has an entry for each of its labels.
    fn allows_repeated_labels(&self) -> bool {
        true
    }

    fn check_references<'c>(
        &'c self,
        references: &mut FileReferences<'c>,
        decoder: &mut Decoder<'_>,
    ) {
        for node in self
            .pools
            .iter()
            .flat_map(|pool| &pool.nodes)
            .filter(|node| !node.name.is_empty())
        {
            let machine = (
                node.name.as_str(),
                node.username.as_str(),
                node.connection_port.0,
            );
            if let Some(earlier) = references.machines.insert(machine, node.name.span) {
                let message = format!(
                    "`{}` is listed twice with the same user and port",
                    decoder.quote(&node.name)
                );
                decoder
                    .error("duplicate-name", node.name.span, message)
                    .map(|finding| {
                        finding
                            .label(earlier, "first here")
                            .help("`max-parallel-jobs` lets several jobs use one machine")
                    });
            }
        }
    }
}
