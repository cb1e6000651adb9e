//! What a builder shows of itself, with nothing but a job server around it.

use nodeyard_testbeds::gearman::{ExternalJobServer, Kind, tool};

use crate::bed::{Bed, Ran, get, wait_until};

/// A worker without a store.
fn worker(server_port: u16) -> (Bed, u16) {
    let mut bed = Bed::new();
    let program = bed.image_program();
    let port = bed.free_port();
    bed.write(
        "worker.yaml",
        format!(
            "gearman-servers: [{{host: 127.0.0.1, port: {server_port}}}]\n\
             builder-webapp: {{port: {port}}}\n\
             images-dir: images\nbuild-log-dir: logs\nimages-dir-reserve: 0\nimage-size-estimate: 1M\n\
             diskimages: [{{name: tiny, builder: command, command: {}, formats: [qcow2]}}]\n\
             providers: [{{name: somewhere, driver: fake, diskimages: [{{name: tiny}}], pools: []}}]\n",
            program.display()
        ),
    );
    (bed, port)
}

fn call(server: &ExternalJobServer, function: &str, payload: &str) -> bool {
    let port = server.port().to_string();
    let arguments = ["-h", "127.0.0.1", "-p", &port, "-f", function, payload];
    tool("gearman", &arguments).unwrap().status.success()
}

#[test]
fn a_workers_builds_and_uploads_are_counted() {
    let server = ExternalJobServer::start(Kind::Gearmand, None).unwrap();
    let (bed, port) = worker(server.port());
    let daemon = bed.builder("worker.yaml");
    daemon.wait_for_log("builder pages");
    assert_eq!(get(port, "/live").0, 200);
    wait_until("it is ready", || get(port, "/ready").0 == 200);

    assert!(call(
        &server,
        "image-build:tiny",
        r#"{"image-id": "first-one"}"#
    ));
    let upload = r#"{"provider": "somewhere", "image-name": "tiny"}"#;
    assert!(call(&server, "image-upload:first-one", upload));
    bed.write("broken", "");
    assert!(!call(
        &server,
        "image-build:tiny",
        r#"{"image-id": "second-one"}"#
    ));
    assert_eq!(get(port, "/metrics").0, 200);
    for line in [
        "nodeyard_image_builds_total{image=\"tiny\",result=\"failed\"} 1",
        "nodeyard_image_builds_total{image=\"tiny\",result=\"ready\"} 1",
        "nodeyard_image_build_seconds_count{image=\"tiny\"} 1",
        "nodeyard_image_uploads_total{image=\"tiny\",provider=\"somewhere\",result=\"ready\"} 1",
        "nodeyard_image_upload_seconds_count{provider=\"somewhere\"} 1",
        "nodeyard_builder_images{image=\"tiny\"} 1",
        "nodeyard_builder_functions{function=\"image-build\"} 1",
        // Why the second one failed can be asked.
        "nodeyard_builder_functions{function=\"image-info\"} 2",
        "nodeyard_builder_functions{function=\"image-upload\"} 1",
        "nodeyard_builder_working{work=\"build\"} 0",
    ] {
        // Whoever waits for a job may hear of its end before it is counted.
        wait_until(line, || {
            let (_, page) = get(port, "/metrics");
            page.lines().any(|shown| shown == line)
        });
    }
    let (_, page) = get(port, "/metrics");
    assert!(!page.contains("-one"), "ids are no labels");
}

#[test]
fn a_worker_without_a_job_server_is_alive_but_not_ready() {
    let mut server = ExternalJobServer::start(Kind::Gearmand, None).unwrap();
    let (bed, port) = worker(server.port());
    let daemon = bed.builder("worker.yaml");
    daemon.wait_for_log("builder pages");
    wait_until("it is ready", || get(port, "/ready").0 == 200);
    server.kill();
    wait_until("it is not", || {
        get(port, "/ready") == (503, "the worker is connected to no job server".to_owned())
    });
    assert_eq!(get(port, "/live").0, 200);
    server.start_again().unwrap();
    wait_until("it is ready again", || get(port, "/ready").0 == 200);
}

#[test]
fn a_configured_port_must_be_free() {
    let (bed, port) = worker(1);
    let _taken = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let mut command = bed.called("nodepool-builder");
    let ran = command.args(["-f", "-c", "worker.yaml"]).output().unwrap();
    Ran::from(ran).failed("see builder-webapp");
}
