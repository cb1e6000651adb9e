//! The test cloud and the gateway in front of it do what other tests rely on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nodeyard_testbeds::OpenStack;
use nodeyard_testbeds::openstack::{
    Answer, Call, Calls, Fault, Gateway, Passage, Project, Service, Session, Toll,
};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(180);

struct Bed {
    project: Project,
    gateway: Gateway,
    session: Session,
    cloud: OpenStack,
}

fn bed(purpose: &str) -> Option<Bed> {
    let cloud = OpenStack::start_if_possible().unwrap()?;
    let project = cloud.project(purpose).unwrap();
    let gateway = Gateway::start(&cloud).unwrap();
    let session = Session::begin(gateway.url(), project.login()).unwrap();
    Some(Bed {
        project,
        gateway,
        session,
        cloud,
    })
}

fn server(bed: &Bed, name: &str, image: &str) -> Value {
    let flavors = bed.session.list(Service::Compute, "/flavors", "flavors");
    let flavors = flavors.unwrap();
    let tiny = flavors.iter().find(|flavor| flavor["name"] == "tiny");
    json!({"server": {
        "name": name, "imageRef": image, "flavorRef": tiny.unwrap()["id"],
        "networks": [{"uuid": bed.project.network()}],
    }})
}

fn wait_for_status(bed: &Bed, id: &Value, status: &str) -> Value {
    let path = format!("/servers/{}", id.as_str().unwrap());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = bed.session.get(Service::Compute, &path).unwrap();
        if found["server"]["status"] == status {
            return found["server"].clone();
        }
        assert!(
            Instant::now() < deadline && found["server"]["status"] == "BUILD",
            "{found}\n{}",
            bed.cloud.log("nova-compute")
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn servers_become_active_and_what_leads_there_is_counted() {
    let Some(bed) = bed("life") else { return };
    let image = bed.project.create_image("disk", json!({})).unwrap();
    let body = server(&bed, "one", &image);
    let made = bed.session.post(Service::Compute, "/servers", &body);
    let made = made.unwrap();
    let active = wait_for_status(&bed, &made["server"]["id"], "ACTIVE");
    assert!(active["addresses"]["net"][0]["addr"].is_string());
    let counts = bed.gateway.counts();
    assert_eq!(counts["compute POST /v2.1/servers"], 1, "{counts:?}");
    assert_eq!(counts["identity POST /v3/auth/tokens"], 1);
    assert!(counts["compute GET /v2.1/servers/{id}"] >= 1);
    // What the services ask each other, and what the test asks directly, is not counted.
    assert!(!counts.keys().any(|kind| kind.starts_with("image")));

    bed.project.set_quota(&[("instances", 1)]).unwrap();
    let refused = bed.session.post(Service::Compute, "/servers", &body);
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("403") && refused.contains("Quota exceeded"),
        "{refused}"
    );
    bed.project.empty().unwrap();
    assert_eq!(bed.project.servers().unwrap(), Vec::<Value>::new());
    assert_eq!(bed.project.ports().unwrap(), Vec::<Value>::new());
}

#[test]
fn servers_boot_from_volumes() {
    let Some(bed) = bed("volume") else { return };
    let image = bed.project.create_image("disk", json!({})).unwrap();
    let mut body = server(&bed, "one", "");
    body["server"]["block_device_mapping_v2"] = json!([{
        "boot_index": 0, "uuid": image, "source_type": "image", "destination_type": "volume",
        "volume_size": 3, "delete_on_termination": true,
    }]);
    let made = bed.session.post(Service::Compute, "/servers", &body);
    wait_for_status(&bed, &made.unwrap()["server"]["id"], "ACTIVE");
    let volumes = bed.project.volumes().unwrap();
    assert_eq!(volumes.len(), 1);
    assert_eq!(volumes[0]["size"], 3);
    assert_eq!(volumes[0]["status"], "in-use");
    assert_eq!(volumes[0]["volume_image_metadata"]["image_id"], *image);
    bed.project.empty().unwrap();
    assert_eq!(bed.project.volumes().unwrap(), Vec::<Value>::new());
}

#[test]
fn a_lost_answer_leaves_a_server_and_a_broken_connection_none() {
    let Some(bed) = bed("faults") else { return };
    let image = bed.project.create_image("disk", json!({})).unwrap();
    let create = Calls::of(Service::Compute).method("POST").path("/servers");
    let post = |name: &str| {
        let body = server(&bed, name, &image);
        bed.session.post(Service::Compute, "/servers", &body)
    };
    bed.gateway.fail(create.clone().nth(0), Fault::CutBefore);
    bed.gateway.fail(create.clone().nth(1), Fault::AnswerLost);
    bed.gateway
        .fail(create.nth(2), Fault::over_quota(Service::Compute));
    post("before").unwrap_err();
    post("after").unwrap_err();
    let refused = post("refused").unwrap_err().to_string();
    assert!(refused.contains("Quota exceeded"), "{refused}");
    let servers = bed.project.servers().unwrap();
    let names: Vec<&Value> = servers.iter().map(|server| &server["name"]).collect();
    assert_eq!(names, ["after"]);
    assert_eq!(bed.gateway.failures(), 3);
}

#[test]
fn a_cut_upload_leaves_an_image_that_is_not_active() {
    let Some(bed) = bed("upload") else { return };
    let record = json!({"name": "cut", "disk_format": "raw", "container_format": "bare"});
    let image = bed.session.post(Service::Image, "/v2/images", &record);
    let id = image.unwrap()["id"].as_str().unwrap().to_owned();
    let upload = Calls::of(Service::Image).method("PUT").path("/file");
    bed.gateway.fail(upload.nth(0), Fault::CutUpload(100_000));
    bed.session.upload(&id, &vec![1; 1 << 20]).unwrap_err();
    assert_ne!(bed.project.images().unwrap()[0]["status"], "active");
}

#[test]
fn tokens_expire_on_request_and_answers_can_lie() {
    let Some(bed) = bed("tokens") else { return };
    bed.gateway.expire_tokens();
    let refused = bed.session.get(Service::Compute, "/flavors").unwrap_err();
    assert!(refused.to_string().contains("401"), "{refused}");
    let again = Session::begin(bed.gateway.url(), bed.project.login()).unwrap();
    again.get(Service::Compute, "/flavors").unwrap();

    let flavors = Calls::of(Service::Compute).path("/flavors");
    let nothing = |answer: &mut Value| answer["flavors"] = json!([]);
    bed.gateway.fail(flavors, Fault::Altered(Arc::new(nothing)));
    let listed = again.list(Service::Compute, "/flavors", "flavors").unwrap();
    assert!(listed.is_empty());
    bed.gateway.heal();
    let listed = again.list(Service::Compute, "/flavors", "flavors").unwrap();
    assert!(!listed.is_empty());
}

/// Lets every second call be made in vain.
struct EverySecond(AtomicUsize);

impl Toll for EverySecond {
    fn pass(&self, call: &Call, forward: &mut dyn FnMut()) -> Passage {
        match self.0.fetch_add(1, Ordering::SeqCst) % 2 {
            0 => Passage::Through,
            _ => {
                forward();
                Passage::Answer(Answer::of(call.service, 503, "later"))
            }
        }
    }
}

#[test]
fn somebody_else_can_decide_about_each_call() {
    let Some(bed) = bed("toll") else { return };
    bed.gateway
        .set_toll(Arc::new(EverySecond(AtomicUsize::new(0))));
    let get = || bed.session.get(Service::Network, "/v2.0/networks");
    get().unwrap();
    let refused = get().unwrap_err().to_string();
    assert!(
        refused.contains("503") && refused.contains("later"),
        "{refused}"
    );
}
