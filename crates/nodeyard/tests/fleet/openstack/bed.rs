//! A launcher and a builder of ours in a project of the test cloud.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use nodeyard_testbeds::gearman::{ExternalJobServer, Kind};
use nodeyard_testbeds::openstack::{Gateway, Project};
use nodeyard_testbeds::{
    Launcher, LauncherOptions, OpenStack, ZooKeeperServer, ZuulClient, connection, executable,
    free_port,
};
use serde_json::Value;

use crate::bed::{LONG_SESSION, client, node, request, take, wait_until};

/// None where there can be none, which is said.
pub(crate) fn cloud() -> Option<&'static OpenStack> {
    static CLOUD: LazyLock<Option<OpenStack>> =
        LazyLock::new(|| OpenStack::start_if_possible().unwrap());
    CLOUD.as_ref()
}

pub(crate) struct Yard {
    pub(crate) zuul: ZuulClient,
    launcher: Option<Launcher>,
    builder: Option<Child>,
    pub(crate) zookeeper: ZooKeeperServer,
    pub(crate) gateway: Gateway,
    clouds: PathBuf,
    // It goes when nobody makes anything in it any more.
    pub(crate) project: Project,
}

impl Yard {
    /// Nothing runs in it yet.
    pub(crate) fn new(purpose: &str) -> Option<Self> {
        let cloud = cloud()?;
        let project = cloud.project(purpose).unwrap();
        let gateway = Gateway::start(cloud).unwrap();
        let clouds = project.clouds_yaml_through(&gateway).unwrap();
        let zookeeper = ZooKeeperServer::start().unwrap();
        Some(Self {
            zuul: client(&zookeeper),
            launcher: None,
            builder: None,
            zookeeper,
            gateway,
            clouds,
            project,
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.project.directory().join(name)
    }

    /// A line about the cloud, for whoever starts from now on.
    pub(crate) fn add_to_cloud(&self, line: &str) {
        let clouds = fs::read_to_string(&self.clouds).unwrap();
        fs::write(&self.clouds, format!("{clouds}    {line}\n")).unwrap();
    }

    pub(crate) fn launch(&mut self, configuration: &str) {
        let binary = Path::new(env!("CARGO_BIN_EXE_nodeyard"));
        let options = LauncherOptions::nodeyard(binary, configuration)
            // What waits for the next round of clean-up should not wait long.
            .env("NODEPOOL_TEST_CLEANUP_INTERVAL", "1");
        self.start(options);
    }

    /// Python Nodepool's launcher in place of ours.
    pub(crate) fn launch_python(&mut self, configuration: &str) {
        // Without a public address it knows of none, unless it is told that private ones will do.
        self.add_to_cloud("private: true");
        self.start(LauncherOptions::python(configuration));
    }

    fn start(&mut self, options: LauncherOptions<'_>) {
        let options = options
            .session(LONG_SESSION)
            .env("OS_CLIENT_CONFIG_FILE", self.clouds.display().to_string());
        self.launcher = Some(Launcher::start(&self.zookeeper, &options).unwrap());
    }

    pub(crate) fn launcher_log(&self) -> String {
        let log = self.launcher.as_ref().unwrap().log();
        fs::read_to_string(log).unwrap()
    }

    /// A builder that is worker and steward, with a job server of somebody else in between.
    pub(crate) fn build(&mut self, jobs: &ExternalJobServer, configuration: &str) {
        let directory = self.project.directory();
        let program = directory.join("nodepool-builder");
        symlink(env!("CARGO_BIN_EXE_nodeyard"), &program).unwrap();
        let text = format!(
            "{zookeeper}\
gearman-servers: [{{host: 127.0.0.1, port: {jobs}}}]
builder-webapp: {{port: {web}}}
images-dir: {dir}/images
build-log-dir: {dir}/logs
images-dir-reserve: 0
image-size-estimate: 1M
{configuration}",
            zookeeper = connection(&self.zookeeper, LONG_SESSION),
            jobs = jobs.port(),
            web = free_port().unwrap(),
            dir = directory.display(),
        );
        fs::write(directory.join("builder.yaml"), text).unwrap();
        let log = fs::File::create(directory.join("builder.log")).unwrap();
        let builder = Command::new(program)
            .args(["-f", "-c", "builder.yaml"])
            .current_dir(directory)
            .env("OS_CLIENT_CONFIG_FILE", &self.clouds)
            .env("NODEPOOL_TEST_BUILD_INTERVAL", "0.2")
            .env("NODEPOOL_TEST_BUILDER_CLEANUP_INTERVAL", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.builder = Some(builder.unwrap());
    }

    /// A line of what Linux knows of the builder, in kilobytes.
    pub(crate) fn builder_memory(&self, field: &str) -> u64 {
        let pid = self.builder.as_ref().unwrap().id();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let words = line.unwrap().trim_start_matches(':').split_whitespace();
        words.map(|word| word.parse().unwrap()).next().unwrap()
    }

    /// A program that makes an image: what a shell does with the name of the file in `$file`.
    pub(crate) fn image_program(&self, script: &str) -> PathBuf {
        let path = self.path("make-image");
        let text = format!(
            "#!/bin/sh\nset -e\nPATH=/usr/bin:/bin\n\
             for format in $(echo \"$NODEYARD_FORMATS\" | tr , ' '); do\n\
             file=\"$NODEYARD_OUTPUT.$format\"\n{script}\ndone\n"
        );
        executable(&path, &text).unwrap();
        path
    }

    /// The image of the project that is active, once it is the only one.
    pub(crate) fn only_active_image(&self) -> Value {
        let mut images = Vec::new();
        wait_until("there is one image, and it is active", || {
            images = self.project.images().unwrap();
            images.len() == 1 && images[0]["status"] == "active"
        });
        images.remove(0)
    }

    /// The server of a node.
    pub(crate) fn server(&self, node: &Value) -> Value {
        let servers = self.project.servers().unwrap();
        let found = servers
            .into_iter()
            .find(|server| server["id"] == node["external_id"]);
        found.unwrap_or_else(|| panic!("there is no server for {node}"))
    }

    /// Asks for a node and takes it.
    #[track_caller]
    pub(crate) fn take_one(&self, label: &str) -> (String, Value) {
        let request = self.zuul.submit(&[label]).unwrap();
        let node = take(&self.zuul, &request).remove(0);
        (request, node)
    }

    /// Asks for a node until there is one: without an image a request fails.
    #[track_caller]
    pub(crate) fn take_one_when_there_is_an_image(&self, label: &str) -> (String, Value) {
        let mut asked: Option<String> = None;
        wait_until("a request is served", || {
            let id = asked.get_or_insert_with(|| self.zuul.submit(&[label]).unwrap());
            let state = request(&self.zuul, id).unwrap()["state"].clone();
            if state == "failed" {
                self.zuul.cancel(id).unwrap();
                asked = None;
            }
            state == "fulfilled"
        });
        let id = asked.unwrap();
        let node = take(&self.zuul, &id).remove(0);
        (id, node)
    }

    /// Waits until neither records nor the cloud know anything of nodes.
    #[track_caller]
    pub(crate) fn wait_until_empty(&self) {
        wait_until("all records of nodes are gone", || {
            self.zuul.nodes().unwrap().is_empty()
        });
        wait_until("the cloud is empty", || {
            self.project.servers().unwrap().is_empty()
                && self.project.ports().unwrap().is_empty()
                && self.project.floating_ips().unwrap().is_empty()
        });
    }

    #[track_caller]
    pub(crate) fn give_back(&self, request: &str, id: &Value) {
        self.zuul.give_back(request).unwrap();
        wait_until("the node is gone", || node(&self.zuul, id).is_none());
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        if let Some(mut builder) = self.builder.take() {
            let _ended = builder.kill();
            let _ended = builder.wait();
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.path("builder.log")).unwrap_or_default();
            eprintln!("the builder:\n{log}");
            for call in self.gateway.calls() {
                eprintln!("{} {} {:?}", call.kind(), call.query, call.status);
            }
        }
        // What it makes while the project is emptied would stay.
        if let Some(launcher) = self.launcher.take() {
            launcher.kill();
        }
    }
}

pub(crate) fn gearmand() -> ExternalJobServer {
    ExternalJobServer::start(Kind::Gearmand, None).unwrap()
}

/// What the launcher is told about labels and the cloud.
pub(crate) struct Configuration {
    /// Lines of the provider.
    pub(crate) provider: &'static str,
    /// Lines of the pool.
    pub(crate) pool: &'static str,
    /// What the label `small` boots from.
    pub(crate) image: &'static str,
}

impl Configuration {
    pub(crate) fn text(&self) -> String {
        format!(
            "labels: [{{name: small}}]
providers:
  - name: cloud
    driver: openstack
    cloud: nodepool
    rate: 0.001
{provider}
    pools:
      - name: main
        networks: [net]
        host-key-checking: false
{pool}
        labels: [{{name: small, flavor-name: tiny, {image}}}]
",
            provider = self.provider,
            pool = self.pool,
            image = self.image,
        )
    }
}
