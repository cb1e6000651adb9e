use super::*;

const CLOUDS: &str = "
clouds:
  plain: {image-format: raw}
  silent: {auth: {}}
  by-profile: {profile: provider}
  regions:
    image_format: raw
    regions: [{name: north, values: {image_format: vhd}}, south]
";

const PUBLIC: &str = "public-clouds: {provider: {image_format: vmdk}}";

fn found(files: &[(&str, &str)]) -> Result<CloudsYaml, CloudsError> {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    CloudsYaml::find(&ProcessEnvironment {
        directory: directory.path().to_owned(),
        ..ProcessEnvironment::default()
    })
}

#[test]
fn the_image_format_is_found_in_every_file() {
    let secure = "clouds: {silent: {image_format: iso}}";
    let clouds = found(&[("clouds.yaml", CLOUDS), ("clouds-public.yaml", PUBLIC)]).unwrap();
    let format = |clouds: &CloudsYaml, name, region| {
        let cloud = clouds.cloud(Some(name), region).unwrap();
        cloud.image_format().unwrap()
    };
    for (name, region, expected) in [
        ("plain", None, "raw"),
        ("silent", None, "qcow2"),
        ("by-profile", None, "vmdk"),
        ("regions", None, "vhd"),
        ("regions", Some("north"), "vhd"),
        ("regions", Some("south"), "raw"),
    ] {
        assert_eq!(format(&clouds, name, region), expected, "{name} {region:?}");
    }
    let clouds = found(&[("clouds.yaml", CLOUDS), ("secure.yaml", secure)]).unwrap();
    assert_eq!(format(&clouds, "silent", None), "iso");
}

#[test]
fn errors_name_the_file() {
    for bad in ["clouds: [", "- x"] {
        let error = found(&[("clouds.yaml", bad)]).unwrap_err();
        assert!(error.to_string().contains("clouds.yaml"), "{error}");
    }
    let clouds = found(&[("clouds.yaml", CLOUDS)]).unwrap();
    let error = clouds.cloud(Some("regions"), Some("west")).unwrap_err();
    assert!(error.to_string().contains("north, south"), "{error}");
    let error = clouds.cloud(Some("other"), None).unwrap_err();
    assert!(error.to_string().contains("by-profile, plain"), "{error}");
}
