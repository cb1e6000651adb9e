//! People and git reach into a pod. The pod is an emulation of ours: a server that speaks the exec protocol of API
//! servers and runs the commands on this machine.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio_tungstenite::accept_hdr_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};

use crate::bed::{Bed, read_until};

const NODE: &str = "0000000042";
const NAMESPACE: &str = "main-0000000042";
const LOG: &str = "the pod says this\n";

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const CLOSE: u8 = 255;

/// Ends with the test.
struct EmulatedPod {
    address: SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

impl EmulatedPod {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        Self {
            address,
            _runtime: runtime,
        }
    }

    /// As the record of a node names it.
    fn credentials(&self) -> Value {
        json!({
            "name": NAMESPACE, "namespace": NAMESPACE, "host": format!("http://{}", self.address), "skiptls": false,
            "token": "secret", "user": "zuul-worker", "pod": "box",
        })
    }

    fn kubeconfig(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "x", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x", "namespace": NAMESPACE}}],
        })
    }
}

async fn serve(mut stream: TcpStream) {
    let mut head = [0; 4096];
    let count = stream.peek(&mut head).await.unwrap();
    let head = String::from_utf8_lossy(&head[..count]).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let pod = format!("/api/v1/namespaces/{NAMESPACE}/pods/box");
    if path.starts_with(&format!("{pod}/exec?")) {
        return run(stream).await;
    }
    // What is left unread would break the connection before the answer is.
    stream.read_exact(&mut vec![0; count]).await.unwrap();
    if path.starts_with(&format!("{pod}/log?")) {
        let more = path.contains("follow=true");
        let chunk = format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{LOG}\r\n",
            LOG.len()
        );
        stream.write_all(chunk.as_bytes()).await.unwrap();
        if more {
            std::future::pending::<()>().await;
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    } else {
        let status = r#"{"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "no pod"}"#;
        let answer = format!(
            "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{status}",
            status.len()
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

/// Runs the command that is asked for, here, with its streams on the channels.
async fn run(stream: TcpStream) {
    let mut query = String::new();
    #[expect(clippy::result_large_err, reason = "the library wants it so")]
    let handshake =
        |request: &Request, mut response: Response| -> Result<Response, ErrorResponse> {
            query = request.uri().query().unwrap_or_default().to_owned();
            let protocol = "v5.channel.k8s.io".parse().unwrap();
            response
                .headers_mut()
                .insert("sec-websocket-protocol", protocol);
            Ok(response)
        };
    let socket = accept_hdr_async(stream, handshake).await.unwrap();
    let words: Vec<String> = query
        .split('&')
        .filter_map(|part| part.strip_prefix("command="))
        .map(unescape)
        .collect();
    let (sink, mut source) = socket.split();
    let sink = Arc::new(Mutex::new(sink));
    let status = match tokio::process::Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    {
        Err(error) => {
            json!({"status": "Failure", "reason": "InternalError", "message": error.to_string()})
        }
        Ok(mut child) => {
            let mut stdin = child.stdin.take();
            tokio::spawn(async move {
                while let Some(Ok(Message::Binary(bytes))) = source.next().await {
                    match bytes[0] {
                        STDIN => {
                            if let Some(stdin) = &mut stdin {
                                let _ = stdin.write_all(&bytes[1..]).await;
                            }
                        }
                        CLOSE => stdin = None,
                        other => panic!("nothing is sent on channel {other}"),
                    }
                }
            });
            let send = |channel: u8, mut from: Box<dyn AsyncRead + Send + Unpin>| {
                let sink = Arc::clone(&sink);
                async move {
                    let mut buffer = vec![0; 32 << 10];
                    while let Ok(count @ 1..) = from.read(&mut buffer).await {
                        let mut bytes = vec![channel];
                        bytes.extend_from_slice(&buffer[..count]);
                        let _ = sink.lock().await.send(Message::binary(bytes)).await;
                    }
                }
            };
            let out = send(STDOUT, Box::new(child.stdout.take().unwrap()));
            let err = send(STDERR, Box::new(child.stderr.take().unwrap()));
            tokio::join!(out, err);
            match child.wait().await.unwrap().code() {
                Some(0) => json!({"status": "Success"}),
                code => json!({"status": "Failure", "reason": "NonZeroExitCode", "details": {
                    "causes": [{"reason": "ExitCode", "message": code.unwrap_or(1).to_string()}],
                }}),
            }
        }
    };
    let mut bytes = vec![STATUS];
    bytes.extend_from_slice(status.to_string().as_bytes());
    let mut sink = sink.lock().await;
    let _ = sink.send(Message::binary(bytes)).await;
    let _ = sink.close().await;
}

fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(out).unwrap()
}

/// A store with a node that is a pod, and one that is not.
fn bed(pod: &EmulatedPod) -> Bed {
    let bed = Bed::new();
    // Makes the store; nobody is to do anything about the nodes in it.
    bed.up(&[]).terminate();
    let node = |more: Value| {
        let mut node = json!({
            "state": "ready", "state_time": 1, "created_time": 1, "type": ["box"], "provider": "cluster", "pool": "main",
        });
        node.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        node.to_string()
    };
    let reached = node(json!({
        "connection_type": "kubectl", "connection_port": pod.credentials(), "interface_ip": "box",
        "external_id": NAMESPACE,
    }));
    // Zuul leaves the record of a used node without its credentials.
    let used = node(json!({
        "connection_type": "kubectl", "connection_port": null, "interface_ip": "box", "external_id": NAMESPACE,
    }));
    let machine =
        node(json!({"connection_type": "ssh", "connection_port": 22, "interface_ip": "192.0.2.7"}));
    let mut lines = vec![
        json!({"nodeyard-export": 1}),
        json!({"path": "/nodepool"}),
        json!({"path": "/nodepool/nodes"}),
    ];
    for (id, data) in [
        (NODE, reached),
        ("0000000043", used),
        ("0000000044", machine),
    ] {
        lines.push(json!({"path": format!("/nodepool/nodes/{id}"), "data": data}));
    }
    let lines: Vec<_> = lines.iter().map(Value::to_string).collect();
    bed.write("nodes.jsonl", lines.join("\n"));
    bed.store(&["import", "nodes.jsonl"]).succeeded();
    bed.write("kubeconfig", pod.kubeconfig().to_string());
    bed
}

/// `nodeyard`, with the programs of this machine for what the pod runs.
fn nodeyard(bed: &Bed, arguments: &[&str]) -> Command {
    let mut command = bed.command();
    command
        .args(arguments)
        .env("KUBECONFIG", bed.path("kubeconfig"));
    command
}

fn exec(bed: &Bed, id: &str, words: &[&str]) -> Command {
    let mut command = nodeyard(bed, &["exec", "--state-dir", "state", id, "--"]);
    command.args(words);
    command
}

/// What a command says that gets something to read.
fn told(mut command: Command, input: &[u8]) -> (Option<i32>, Vec<u8>, String) {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join();
    (
        output.status.code(),
        output.stdout,
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn a_command_has_input_output_errors_and_an_exit_code() {
    let pod = EmulatedPod::start();
    let bed = bed(&pod);
    let script = "cat; echo complaint >&2; exit 3";
    for id in [NODE, "0000000043"] {
        let told = told(exec(&bed, id, &["/bin/sh", "-c", script]), b"input\n");
        assert_eq!(
            told,
            (Some(3), b"input\n".to_vec(), "complaint\n".to_owned()),
            "{id}"
        );
    }
    // More than fits into any buffer on the way.
    let large: Vec<u8> = (0..5_000_000_u32)
        .map(|number| (number % 251) as u8)
        .collect();
    let (code, out, _) = told(exec(&bed, NODE, &["/bin/cat"]), &large);
    assert_eq!(code, Some(0));
    assert!(out == large, "{} bytes came back", out.len());
    // Standard input that stays open does not keep it.
    let mut open = exec(&bed, NODE, &["/bin/true"]);
    let mut open = open.stdin(Stdio::piped()).spawn().unwrap();
    let stdin = open.stdin.take();
    assert_eq!(open.wait().unwrap().code(), Some(0));
    drop(stdin);

    let (code, _, complaint) = told(exec(&bed, NODE, &["/no/such/program"]), b"");
    assert_eq!(code, Some(1));
    assert!(
        complaint.contains("failed to run the command"),
        "{complaint}"
    );
    let (_, _, complaint) = told(exec(&bed, "0000000044", &["true"]), b"");
    assert!(
        complaint.contains("its connection is ssh at 192.0.2.7 port 22"),
        "{complaint}"
    );
    let (_, _, complaint) = told(exec(&bed, "0000000099", &["true"]), b"");
    assert!(complaint.contains("no node 0000000099"), "{complaint}");
}

#[test]
fn a_log_is_shown_and_followed() {
    let pod = EmulatedPod::start();
    let bed = bed(&pod);
    let (code, out, _) = told(nodeyard(&bed, &["logs", "--state-dir", "state", NODE]), b"");
    assert_eq!((code, out.as_slice()), (Some(0), LOG.as_bytes()));
    let mut follow = nodeyard(&bed, &["logs", "-f", "--state-dir", "state", NODE]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    read_until(&mut follow, LOG.trim());
    follow.kill().unwrap();
    follow.wait().unwrap();
}

fn git(place: &Path, arguments: &[&str]) {
    let identity = ["-c", "user.name=a", "-c", "user.email=a@b.example"];
    let done = Command::new("git")
        .arg("-C")
        .arg(place)
        .args(identity)
        .args(arguments)
        .status();
    assert!(done.unwrap().success(), "{arguments:?}");
}

/// A repository with a few megabytes that cannot be compressed, and an empty one beside it.
fn repositories(bed: &Bed) -> (PathBuf, PathBuf) {
    let (place, target) = (bed.path("repository"), bed.path("target"));
    fs::create_dir(&place).unwrap();
    let mut noise = vec![0; 8 << 20];
    let mut seed = 1_u64;
    for byte in &mut noise {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (seed >> 56) as u8;
    }
    fs::write(place.join("noise"), noise).unwrap();
    git(&place, &["init", "-q", "-b", "main"]);
    git(&place, &["add", "."]);
    git(&place, &["commit", "-q", "-m", "noise"]);
    git(
        &place,
        &["init", "-q", "-b", "main", target.to_str().unwrap()],
    );
    git(
        &target,
        &["config", "receive.denyCurrentBranch", "updateInstead"],
    );
    (place, target)
}

#[test]
fn git_pushes_into_a_pod_and_fetches_from_it() {
    let pod = EmulatedPod::start();
    let bed = bed(&pod);
    let (place, target) = repositories(&bed);
    let program = bed.command().get_program().to_owned();
    let git_exec = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command
            .arg("-C")
            .arg(&place)
            .args(arguments)
            .env("KUBECONFIG", bed.path("kubeconfig"))
            .env("NODEPOOL_GIT_PATH", bed.path("target"))
            .env(
                "GIT_SSH_COMMAND",
                format!("'{}' git-exec", program.display()),
            );
        let output = command.output().unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let remote = |host: &str, path: &Path| format!("{host}:{}", path.display());
    let there = remote(&format!("box.{NAMESPACE}"), &target);
    let (pushed, said) = git_exec(&["push", "-q", &there, "main"]);
    assert!(pushed, "{said}");
    // It is checked out there.
    assert!(fs::read(place.join("noise")).unwrap() == fs::read(target.join("noise")).unwrap());
    fs::write(target.join("answer"), "answer").unwrap();
    git(&target, &["add", "."]);
    git(&target, &["commit", "-q", "-m", "answer"]);
    // The namespace may come from the kubeconfig.
    let (pulled, said) = git_exec(&["pull", "-q", &remote("box", &target), "main"]);
    assert!(pulled, "{said}");
    assert_eq!(fs::read(place.join("answer")).unwrap(), b"answer");

    let (pushed, said) = git_exec(&["push", "-q", &remote("box", &place), "main"]);
    assert!(!pushed && said.contains("is not in"), "{said}");
    let (pushed, said) = git_exec(&["push", "-q", &remote("nobody", &target), "main"]);
    assert!(!pushed && said.contains("nobody"), "{said}");
    let (code, _, said) = told(nodeyard(&bed, &["git-exec", "box", "sh -c true"]), b"");
    assert_eq!(code, Some(255), "{said}");
    assert!(said.contains("not a command of git"), "{said}");
}
