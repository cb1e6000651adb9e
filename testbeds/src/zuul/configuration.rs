//! The files that Zuul's daemons read when they start.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{TENANT, ZuulOptions};
use crate::zookeeper::ZooKeeperServer;

/// Where the executor finds [`JOBS`] of the bed, in a name space of its own: sockets in the directory of a build
/// must not have a name longer than 107 bytes, and the builds need 73 of them.
pub(super) const JOBS_SEEN_BY_EXECUTOR: &str = "/mnt";
pub(super) const JOBS: &str = "jobs";
pub(super) const STATE: &str = "state";
pub(super) const TEMPORARY: &str = "tmp";
pub(super) const REPOSITORIES: &str = "repositories";

pub(super) struct Settings<'a> {
    pub(super) zookeeper: &'a ZooKeeperServer,
    pub(super) database_uri: String,
    pub(super) web_port: u16,
    pub(super) finger_port: u16,
    pub(super) ssh_key: &'a Path,
    pub(super) programs: &'a [PathBuf],
    pub(super) ansible: &'a Path,
    /// The Python that Ansible's environment is made of, which is not in it.
    pub(super) python_base: String,
}

pub(super) fn write(
    directory: &Path,
    settings: &Settings<'_>,
    options: &ZuulOptions,
) -> Result<()> {
    for name in [JOBS, STATE, TEMPORARY, REPOSITORIES] {
        fs::create_dir(directory.join(name))?;
    }
    fs::write(directory.join("zuul.conf"), zuul_conf(directory, settings)?)?;
    fs::write(directory.join("logging.yaml"), LOGGING)?;
    let projects: String = options
        .repositories()
        .map(|name| format!("          - {name}\n"))
        .collect();
    let (rule, access) = match options.protected {
        true => (RULE, "    access-rules: [tested]\n"),
        false => ("", ""),
    };
    let tenants = format!(
        "{rule}- tenant:\n    \
             name: {TENANT}\n    \
             source:\n      \
               local:\n        \
                 config-projects:\n          - config\n        \
                 untrusted-projects:\n{projects}{access}"
    );
    fs::write(directory.join("tenants.yaml"), tenants)?;
    Ok(())
}

fn zuul_conf(directory: &Path, settings: &Settings<'_>) -> Result<String> {
    let bed = directory.display();
    let certificates = settings.zookeeper.certificates();
    let web_port = settings.web_port;
    let mut seen = settings.python_base.clone();
    for place in settings.programs {
        write!(seen, ":{}", place.display())?;
    }
    let mut text = format!(
        "[zookeeper]\n\
         hosts=127.0.0.1:{zookeeper}\n\
         tls_ca={ca}\n\
         tls_cert={cert}\n\
         tls_key={key}\n\
         session_timeout=20\n\
         [keystore]\n\
         password=bed\n\
         [database]\n\
         dburi={database}\n\
         [connection local]\n\
         driver=git\n\
         baseurl=file://{bed}/{REPOSITORIES}\n\
         poll_delay=1\n\
         [auth operator]\n\
         driver=HS256\n\
         allow_authz_override=true\n\
         realm=bed\n\
         client_id=bed\n\
         issuer_id=bed\n\
         secret=only-for-tests-only-for-tests-only-for-tests\n",
        zookeeper = settings.zookeeper.tls_port(),
        ca = certificates.ca.display(),
        cert = certificates.client.cert.display(),
        key = certificates.client.key.display(),
        database = settings.database_uri,
    );
    for (daemon, more) in [
        ("scheduler", format!("tenant_config={bed}/tenants.yaml\n")),
        (
            "merger",
            format!(
                "git_dir={bed}/{STATE}/merger-git\n\
                 git_user_name=zuul\n\
                 git_user_email=zuul@localhost\n"
            ),
        ),
        (
            "executor",
            format!(
                "user=root\n\
                 hostname=127.0.0.1\n\
                 default_username=root\n\
                 private_key_file={key}\n\
                 ansible_root={ansible}\n\
                 manage_ansible=false\n\
                 trusted_ro_paths={seen}\n\
                 untrusted_ro_paths={seen}\n\
                 git_dir={bed}/{STATE}/executor-git\n\
                 job_dir={JOBS_SEEN_BY_EXECUTOR}\n\
                 finger_port={finger}\n\
                 disk_limit_per_job=-1\n\
                 load_multiplier=50\n\
                 min_avail_mem=1\n\
                 min_avail_hdd=1\n",
                key = settings.ssh_key.display(),
                ansible = settings.ansible.display(),
                finger = settings.finger_port,
            ),
        ),
        (
            "web",
            format!(
                "listen_address=127.0.0.1\n\
                 port={web_port}\n\
                 root=http://127.0.0.1:{web_port}\n"
            ),
        ),
    ] {
        write!(
            text,
            "[{daemon}]\n\
             state_dir={bed}/{STATE}\n\
             pidfile={bed}/{STATE}/{daemon}.pid\n\
             command_socket={bed}/{STATE}/{daemon}.socket\n\
             log_config={bed}/logging.yaml\n\
             {more}"
        )?;
    }
    Ok(text)
}

const RULE: &str = "\
- authorization-rule:
    name: tested
    conditions:
      - zuul_uid: test
";

const LOGGING: &str = "\
version: 1
formatters:
  line: {format: '%(asctime)s %(levelname)s %(name)s: %(message)s'}
handlers:
  output: {class: logging.StreamHandler, formatter: line, stream: ext://sys.stdout}
loggers:
  zuul: {level: DEBUG}
  kazoo: {level: WARNING}
root: {level: WARNING, handlers: [output]}
";
