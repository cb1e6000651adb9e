//! The job server inside the process, as `gearman-listen` describes it, and those who call it from outside.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nodeyard_gearman::client::{
    AdminClient, AdminError, ClientError, FunctionStatus, JobClient, JobClientOptions, JobRequest,
};
use nodeyard_gearman::{ClientTls, GearmanEndpoint, HostCheck, TlsFiles};
use nodeyard_testbeds::gearman::{Peer, python, tool};
use nodeyard_testbeds::{Authority, Identity};
use serde_json::Value;

use crate::bed::{Bed, Daemon, get, wait_until};

/// So long that only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(60);

/// `nodeyard up` with a job server for others.
struct Yard {
    bed: Bed,
    port: u16,
    /// Of the builder's pages.
    pages: u16,
    daemon: Daemon,
}

impl Yard {
    /// `listen` is what `gearman-listen` says beside the port.
    fn start(mut bed: Bed, listen: &str) -> Self {
        let program = bed.image_program();
        let (port, pages) = (bed.free_port(), bed.free_port());
        bed.write(
            "nodepool.yaml",
            format!(
                "state-dir: state\nimages-dir: images\nbuild-log-dir: logs\n\
                 images-dir-reserve: 0\nimage-size-estimate: 1M\n\
                 webapp: {{port: {}, listen_address: 127.0.0.1}}\n\
                 builder-webapp: {{port: {pages}}}\n\
                 gearman-listen: {{port: {port}, {listen}}}\n\
                 diskimages: [{{name: tiny, builder: command, command: {}, formats: [qcow2]}}]\n\
                 providers: [{{name: somewhere, driver: fake, diskimages: [{{name: tiny}}], pools: []}}]\n",
                bed.free_port(),
                program.display()
            ),
        );
        let daemon = bed.start("log", ["-c", "nodepool.yaml", "up"]);
        daemon.wait_for_log("job server ready");
        Self {
            bed,
            port,
            pages,
            daemon,
        }
    }

    /// The steward in the process has had an image made, by way of this server.
    fn builds_for_itself(&self) {
        let build = ["-c", "nodepool.yaml", "image", "build", "tiny", "--wait"];
        self.bed.run(build).succeeded();
        let (_, page) = get(self.pages, "/metrics");
        let counted = page
            .lines()
            .filter_map(|line| line.strip_prefix("nodeyard_gearman_events_total"))
            .any(|rest| rest.starts_with("{event=\"job-completed\"}") && !rest.ends_with(" 0"));
        assert!(counted, "{page}");
    }
}

struct Clients {
    authority: Authority,
    foreign: Authority,
}

impl Clients {
    fn new(bed: &Bed) -> Self {
        let directory = bed.path("certificates");
        Self {
            authority: Authority::create(&directory, "ca").unwrap(),
            foreign: Authority::create(&directory, "foreign-ca").unwrap(),
        }
    }

    fn sign(&self, name: &str) -> Identity {
        self.authority.sign(name, &[name]).unwrap()
    }

    /// Files as the scripts of Python's gear take them.
    fn files(&self, identity: &Identity) -> [String; 3] {
        [&self.authority.ca, &identity.cert, &identity.key].map(|path| path.display().to_string())
    }

    /// What Python's gear hears of a job.
    fn call(&self, port: u16, who: &str, function: &str, payload: &str) -> Value {
        let [ca, cert, key] = self.files(&self.sign(who));
        let port = port.to_string();
        let arguments = [&*port, function, payload, &*ca, &*cert, &*key];
        let output = python("gear_client.py", &arguments).unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn endpoint(&self, port: u16, who: &Identity) -> GearmanEndpoint {
        let files = TlsFiles {
            ca: self.authority.ca.clone(),
            cert: who.cert.clone(),
            key: who.key.clone(),
        };
        let tls = ClientTls::new(&files, HostCheck::ChainOnly).unwrap();
        GearmanEndpoint::new("127.0.0.1", port).with_tls(tls)
    }

    /// What the admin protocol tells somebody.
    fn status(&self, port: u16, who: &Identity) -> Result<Vec<FunctionStatus>, AdminError> {
        let endpoint = self.endpoint(port, who);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let mut admin = AdminClient::connect(&endpoint, PATIENCE).await?;
            admin.status().await
        })
    }

    /// Somebody may not call a function; Python's gear hears no, and our own client hears why.
    #[track_caller]
    fn is_denied(&self, port: u16, who: &str, function: &str) {
        let answer = self.call(port, who, function, "{}");
        assert!(answer.get("refused").is_some(), "{who}: {answer}");
        let servers = vec![self.endpoint(port, &self.sign(who))];
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let refused = runtime.block_on(async {
            let client = JobClient::new(JobClientOptions::new(servers));
            client.submit(&JobRequest::new(function, "{}")).await
        });
        match refused {
            Err(ClientError::Refused { response, .. }) => {
                assert_eq!(response.text, "Permission denied by ACL");
            }
            other => panic!("{who} calls {function}: {other:?}"),
        }
    }
}

#[test]
fn certificates_determine_the_rights() {
    let bed = Bed::new();
    let clients = Clients::new(&bed);
    let server = clients.sign("server");
    let listen = format!(
        "ssl-ca: {}, ssl-cert: {}, ssl-key: {}, clients: [\
         {{name: main, rights: [invoke], functions: ['image-(build|upload|delete):', 'reverse$']}}, \
         {{name: helper, rights: [register], functions: 'reverse$'}}, \
         {{name: watcher, rights: []}}]",
        clients.authority.ca.display(),
        server.cert.display(),
        server.key.display(),
    );
    let yard = Yard::start(bed, &listen);
    let port = yard.port;
    // The worker and the steward inside are clients of it like others.
    yard.builds_for_itself();

    let built = clients.call(port, "main", "image-build:tiny", r#"{"image-id": "42"}"#);
    assert_eq!(built["complete"], true, "{built}");
    let upload = r#"{"provider": "somewhere", "image-name": "tiny"}"#;
    let uploaded = clients.call(port, "main", "image-upload:42", upload);
    assert_eq!(uploaded["failure"], false, "{uploaded}");

    clients.is_denied(port, "main", "image-info:42");
    clients.is_denied(port, "watcher", "image-delete:42");
    clients.is_denied(port, "helper", "reverse");
    clients.is_denied(port, "stranger", "image-delete:42");

    // A worker of somebody else may offer what it may, and nothing more.
    let [ca, cert, key] = clients.files(&clients.sign("helper"));
    let arguments = [&*port.to_string(), &*ca, &*cert, &*key];
    let _helper = Peer::python("gear_worker.py", &arguments).unwrap();
    let watcher = clients.sign("watcher");
    let workers = |function: &str| {
        let status = clients.status(port, &watcher).unwrap();
        let line = status.iter().find(|line| line.function == function);
        line.map_or(0, |line| line.workers)
    };
    wait_until("the helper is known", || workers("reverse") == 1);
    let reversed = clients.call(port, "main", "reverse", "abc");
    assert_eq!(reversed["data"].as_array().unwrap().last().unwrap(), "cba");
    assert_eq!((workers("fail"), workers("raise")), (0, 0));

    // Others do not get as far as that.
    let foreign = clients.foreign.sign("main", &["main"]).unwrap();
    clients.status(port, &foreign).unwrap_err();
    let plain = ["-h", "127.0.0.1", "-p", &port.to_string(), "--status"];
    let plain = tool("gearadmin", &plain).unwrap();
    assert!(!String::from_utf8_lossy(&plain.stdout).contains("image-"));
    yard.daemon.wait_for_log("connection rejected");

    // And none of it did any harm.
    let deleted = clients.call(port, "main", "image-delete:42", "");
    assert_eq!(deleted["complete"], true, "{deleted}");
    yard.builds_for_itself();
}

/// What a server says to a visitor from an address of this host.
fn visit(port: u16, from: [u8; 4]) -> String {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        let server = SocketAddr::from(([127, 0, 0, 1], port));
        socket.connect(server).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    let mut stream: TcpStream = stream;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut said = vec![0; 100];
    let heard = stream
        .write_all(b"version\n")
        .and_then(|()| stream.read(&mut said));
    String::from_utf8_lossy(&said[..heard.unwrap_or(0)]).into_owned()
}

#[test]
fn only_allowed_addresses_can_connect() {
    let yard = Yard::start(Bed::new(), "allow-from: [127.0.0.2, 10.0.0.0/8]");
    assert!(visit(yard.port, [127, 0, 0, 2]).starts_with("OK"));
    assert_eq!(visit(yard.port, [127, 0, 0, 3]), "");
    yard.daemon.wait_for_log("address not in the allow-list");
    // It does not lock itself out.
    yard.builds_for_itself();
}

#[test]
fn without_tls_only_loopback_is_served() {
    let yard = Yard::start(Bed::new(), "");
    yard.builds_for_itself();
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let listening = format!("0100007F:{:04X} 00000000:0000 0A", yard.port);
    assert!(sockets.contains(&listening), "{sockets}");

    let bed = Bed::new();
    bed.write("nodepool.yaml", "gearman-listen: {address: 0.0.0.0}\n");
    bed.run(["-c", "nodepool.yaml", "up", "--state-dir", "state"])
        .failed("without TLS may only listen on loopback");
}
