//! Checking and showing the configuration.

use crate::bed::{Bed, Ran};

const GOOD: &str = "
labels: [{name: small, min-ready: 2}]
providers:
  - name: rack
    driver: static
    pools:
      - name: main
        nodes: [{name: host1, labels: small, host-key-checking: false}]
";

#[test]
fn both_programs_check_alike() {
    let bed = Bed::new();
    bed.write("good.yaml", GOOD);
    bed.write("bad.yaml", GOOD.replace("min-ready: 2", "min-redy: 2"));
    for check in [
        |bed: &Bed, file: &str| bed.run(["-c", file, "config", "check"]),
        |bed: &Bed, file: &str| {
            let mut command = bed.called("nodepool");
            Ran::from(
                command
                    .args(["-c", file, "config-validate"])
                    .output()
                    .unwrap(),
            )
        },
    ] {
        check(&bed, "good.yaml").succeeded();
        let ran = check(&bed, "bad.yaml").failed("bad.yaml:2:24");
        assert!(ran.err.contains("did you mean `min-ready`"), "{}", ran.err);
        check(&bed, "missing.yaml").failed("missing.yaml");
    }
}

#[test]
fn programs_get_the_findings_as_json() {
    let bed = Bed::new();
    bed.write("bad.yaml", GOOD.replace("min-ready: 2", "min-redy: 2"));
    let ran = bed.run(["--format", "json", "-c", "bad.yaml", "config", "check"]);
    assert_eq!(ran.code, 1);
    let finding = &ran.json()["diagnostics"][0];
    assert_eq!(finding["code"], "unknown-key");
    assert_eq!(finding["place"]["line"], 2);
    assert_eq!(finding["suggestion"], "min-ready");
}

#[test]
fn the_shown_configuration_has_defaults_and_no_secrets() {
    let mut bed = Bed::new();
    bed.set("NODEPOOL_WORD", "abracadabra");
    bed.write(
        "good.yaml",
        format!(
            "{GOOD}\ndiskimages: [{{name: i, env-vars: {{PASSWORD: open}}, metadata: {{word: \"%(NODEPOOL_WORD)\"}}}}]\n"
        ),
    );
    bed.write(
        "secure.yaml",
        "diskimages: [{name: i, env-vars: {TOKEN: sesame}}]\n",
    );
    let ran = bed
        .run(["-c", "good.yaml", "-s", "secure.yaml", "config", "show"])
        .succeeded();
    let shown = ran.json();
    assert_eq!(shown["labels"]["small"]["min-ready"], 2);
    assert_eq!(shown["webapp"]["port"], 8005);
    assert!(
        ran.out.contains("TOKEN") && !ran.out.contains("sesame"),
        "{}",
        ran.out
    );
    assert_eq!(shown["images"]["i"]["metadata"]["word"], "(hidden)");
}

#[test]
fn the_schema_is_json_schema() {
    let schema = Bed::new().run(["config", "schema"]).succeeded().json();
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    assert!(schema["properties"]["providers"].is_object());
}
