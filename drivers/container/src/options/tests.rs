use std::path::Path;

use nodeyard_config::{Driver, Environment, Mode, load_bytes};
use nodeyard_driver::{ErrorClass, SystemId};
use nodeyard_model::ProviderName;

use super::*;

fn options(provider: &str) -> Result<Options, Error> {
    let text = format!(
        "
labels: [{{name: box}}, {{name: shell}}, {{name: newest}}]
diskimages: [{{name: built, username: debian, formats: [tar]}}]
providers:
  - name: here
    driver: container
{provider}"
    );
    let main = (Path::new("nodepool.yaml"), text.as_bytes());
    let (config, problems) = load_bytes(main, None, &Environment::default(), Mode::Daemon);
    let config = config.unwrap_or_else(|| panic!("{problems:?}"));
    let Driver::Container(section) = &config.providers["here"].driver else {
        panic!("another driver");
    };
    let owner = Owner {
        system: SystemId::new("s"),
        provider: ProviderName::new("here").unwrap(),
    };
    let username = |image: &str| Some(config.images.get(image)?.username.clone());
    Options::of(section, owner, username)
}

#[test]
fn every_key_of_the_file_arrives() {
    let options = options(
        "    network: ci
    publish-address: 192.0.2.7
    boot-timeout: 5
    launch-timeout: 6
    diskimages: [{name: built, connection-port: 2200, connection-type: network_cli}]
    cloud-images:
      - {name: deb, image-name: 'debian:12', username: root}
      - {name: newest, image-filters: [{name: os, values: [a, b]}]}
      - {name: exact, image-id: '0123456789ab'}
    pools:
      - name: local
        labels:
          - name: box
            diskimage: built
            authorized-keys: [' ssh-ed25519 AAAA ', ssh-rsa BBBB]
            host-key-checking: false
            cpus: 0.5
            memory: 512
            processes: 100
            ulimits: {nofile: 4096}
            command: [/sbin/init]
            env: {A: b}
            volumes: ['/srv:/srv:ro']
            privileged: true
          - {name: shell, image: 'debian:12', connection: exec}
          - {name: newest, cloud-image: newest, ssh-port: 2222}
",
    )
    .unwrap();
    assert_eq!(options.network.as_deref(), Some("ci"));
    assert_eq!(&*options.publish_address, "192.0.2.7");
    assert_eq!(&*options.reachable_address(), "192.0.2.7");
    assert_eq!(options.boot_timeout, Duration::from_secs(5));
    assert_eq!(options.launch_timeout, Duration::from_secs(6));
    assert_eq!(options.disk_images[0].username.as_deref(), Some("debian"));
    let choices: Vec<_> = options
        .cloud_images
        .iter()
        .map(|image| &image.choice)
        .collect();
    let filter = ImageFilter {
        name: "os".to_owned(),
        values: vec!["a".to_owned(), "b".to_owned()],
    };
    assert_eq!(
        choices,
        [
            &ContainerImageChoice::Reference("debian:12".into()),
            &ContainerImageChoice::Filters(vec![filter]),
            &ContainerImageChoice::Id("0123456789ab".into()),
        ]
    );
    let [all, shell, newest] = &options.pools[0].labels[..] else {
        panic!("{:?}", options.pools);
    };
    assert_eq!(
        all.image,
        ContainerImage::Disk(ImageName::new("built").unwrap())
    );
    // The image says on which port and how, unless the label does.
    assert_eq!((all.ssh_port, &*all.connection_type), (2200, "network_cli"));
    assert_eq!((newest.ssh_port, &*newest.connection_type), (2222, "ssh"));
    let keys: Vec<&str> = all.authorized_keys.iter().map(AsRef::as_ref).collect();
    assert_eq!(keys, ["ssh-ed25519 AAAA", "ssh-rsa BBBB"]);
    assert!(!all.host_key_checking && all.privileged && newest.host_key_checking);
    assert_eq!(
        (all.cpus, all.memory, all.processes),
        (Some(0.5), Some(512), Some(100))
    );
    assert_eq!(all.ulimits, BTreeMap::from([("nofile".to_owned(), 4096)]));
    assert_eq!(all.command.as_deref(), Some(&["/sbin/init".to_owned()][..]));
    assert_eq!(all.env, BTreeMap::from([("A".to_owned(), "b".to_owned())]));
    assert_eq!(all.volumes, ["/srv:/srv:ro"]);
    assert_eq!(shell.access, ContainerAccess::Exec);
    assert_eq!(shell.image, ContainerImage::Reference("debian:12".into()));
}

#[test]
fn what_cannot_work_is_refused_with_its_place() {
    let pool = |label: &str| {
        format!("    pools: [{{name: main, labels: [{{name: box, image: x, {label}}}]}}]\n")
    };
    let cases = [
        (
            format!("    publish-address: here\n{}", pool("")),
            "`publish-address: here`",
        ),
        (
            format!("    network: none\n{}", pool("")),
            "`connection: exec`",
        ),
        (pool("volumes: ['srv:/srv']"), "`volumes`"),
        (pool("volumes: [/srv]"), "`volumes`"),
        (pool("authorized-keys: \"a\\nb\""), "`authorized-keys`"),
    ];
    for (provider, place) in cases {
        let error = options(&provider).expect_err(&provider);
        assert_eq!(error.class(), ErrorClass::Permanent);
        assert!(error.to_string().contains(place), "{error}");
    }
    assert!(options(&format!("    network: none\n{}", pool("connection: exec"))).is_ok());
}
