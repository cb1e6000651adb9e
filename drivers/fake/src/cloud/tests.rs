use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::simulate::Quota;

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_secs(1_700_000_000.0 + seconds).unwrap()
}

fn cloud(boot: u64, delete: u64) -> Cloud {
    let options = Simulate {
        boot_time: Span::exactly(Duration::from_secs(boot)),
        delete_time: Span::exactly(Duration::from_secs(delete)),
        ..Simulate::default()
    };
    Cloud::new(&options, at(0.0))
}

fn ask(
    cloud: &mut Cloud,
    method: &str,
    arguments: &Value,
    seconds: f64,
) -> Result<Value, CloudError> {
    match cloud.call(method, arguments.to_string().as_bytes(), at(seconds)) {
        Outcome::Answer(answer) => {
            answer.map(|reply| serde_json::from_str(reply.result.get()).unwrap())
        }
        other => panic!("{other:?}"),
    }
}

fn create(cloud: &mut Cloud, seconds: f64) -> Result<String, CloudError> {
    let order = json!({
        "name": "a", "flavor": "Fake Flavor", "image": "Fake Precise",
        "boot_from_volume": true, "volume_size": 10, "terminate_volume": true,
    });
    let server = ask(cloud, "create_server", &order, seconds)?;
    Ok(server["id"].as_str().unwrap().to_owned())
}

fn status(cloud: &mut Cloud, id: &str, seconds: f64) -> Value {
    let server = ask(cloud, "get_server", &json!({"id": id}), seconds).unwrap();
    server["status"].clone()
}

#[test]
fn things_take_their_time() {
    let mut cloud = cloud(10, 5);
    let id = create(&mut cloud, 0.0).unwrap();
    assert_eq!(status(&mut cloud, &id, 9.9), "BUILD");
    assert_eq!(status(&mut cloud, &id, 10.1), "ACTIVE");
    ask(&mut cloud, "delete_server", &json!({"id": id}), 20.0).unwrap();
    assert_eq!(status(&mut cloud, &id, 24.9), "ACTIVE");
    assert_eq!(status(&mut cloud, &id, 25.1), Value::Null);
}

#[test]
fn a_server_may_be_deleted_before_it_is_up_and_twice() {
    let mut cloud = cloud(10, 1);
    let id = create(&mut cloud, 0.0).unwrap();
    for seconds in [1.0, 1.5] {
        ask(&mut cloud, "delete_server", &json!({"id": id}), seconds).unwrap();
    }
    assert_eq!(status(&mut cloud, &id, 2.1), Value::Null);
    assert_eq!(
        ask(&mut cloud, "list_servers", &json!({}), 11.0).unwrap(),
        json!([])
    );
    assert_eq!(cloud.used, Usage::default());
}

#[test]
fn without_times_everything_happens_at_once() {
    let mut cloud = cloud(0, 0);
    let id = create(&mut cloud, 0.0).unwrap();
    assert_eq!(status(&mut cloud, &id, 0.0), "ACTIVE");
    ask(&mut cloud, "delete_server", &json!({"id": id}), 0.0).unwrap();
    assert_eq!(status(&mut cloud, &id, 0.0), Value::Null);
}

#[test]
fn a_newer_active_image_hides_an_older_one_of_its_name() {
    let mut cloud = cloud(0, 0);
    let upload = json!({"name": "Fake Precise", "filename": "/x"});
    let newer = ask(&mut cloud, "create_image", &upload, 1.0).unwrap();
    let wanted = json!({"name_or_id": "Fake Precise"});
    let found = ask(&mut cloud, "get_image", &wanted, 2.0).unwrap();
    assert_eq!(found["id"], newer["id"]);
}

#[test]
fn metadata_cannot_pose_as_the_images_own_keys() {
    let mut cloud = cloud(0, 0);
    let upload = json!({"name": "i", "filename": "/x", "id": "mine", "status": "queued"});
    ask(&mut cloud, "create_image", &upload, 1.0).unwrap();
    let raw = match cloud.call("list_images", b"", at(2.0)) {
        Outcome::Answer(Ok(reply)) => reply.result.get().to_owned(),
        other => panic!("{other:?}"),
    };
    assert!(!raw.contains(r#""id":"mine","name""#), "{raw}");
    let found = ask(&mut cloud, "get_image", &json!({"name_or_id": "i"}), 2.0).unwrap();
    assert_eq!(found["status"], "active");
}

#[derive(Debug, Clone)]
enum Act {
    Create,
    Delete(prop::sample::Index),
    Wait(u8),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Create),
        2 => any::<prop::sample::Index>().prop_map(Act::Delete),
        2 => (0_u8..20).prop_map(Act::Wait),
    ]
}

proptest! {
    #[test]
    fn the_sums_are_those_of_what_exists_and_never_exceed_the_quota(
        acts in prop::collection::vec(act(), 0..60),
        seed in any::<u64>(),
    ) {
        let options = Simulate {
            boot_time: Span { min: Duration::ZERO, max: Duration::from_secs(10) },
            delete_time: Span { min: Duration::ZERO, max: Duration::from_secs(10) },
            quota: Quota { cores: 20, instances: 6, volumes: 5, ..Quota::default() },
            seed,
            ..Simulate::default()
        };
        let mut cloud = Cloud::new(&options, at(0.0));
        let (mut made, mut seconds) = (Vec::new(), 0.0);
        for act in acts {
            match act {
                Act::Create => made.extend(create(&mut cloud, seconds).ok()),
                Act::Delete(index) if !made.is_empty() => {
                    let id = index.get(&made);
                    ask(&mut cloud, "delete_server", &json!({"id": id}), seconds).unwrap();
                }
                Act::Delete(_) => {}
                Act::Wait(time) => seconds += f64::from(time),
            }
            let servers = ask(&mut cloud, "list_servers", &json!({}), seconds).unwrap();
            let count = i64::try_from(servers.as_array().unwrap().len()).unwrap();
            let expected = Usage {
                cores: count * 4,
                instances: count,
                ram: count * 8192,
                volumes: count,
                volume_gb: count * 10,
            };
            prop_assert_eq!(cloud.used, expected);
            prop_assert!(count <= 5);
            let volumes = ask(&mut cloud, "list_volumes", &json!({}), seconds).unwrap();
            prop_assert_eq!(volumes.as_array().unwrap().len() as i64, count);
        }
    }

    #[test]
    fn no_body_is_fatal(method in "[a-z_]{0,20}", body in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut cloud = cloud(0, 0);
        for method in [method.as_str(), "create_server", "create_image", "list_ports", "get_server"] {
            let _any = cloud.call(method, &body, at(0.0));
        }
    }
}
