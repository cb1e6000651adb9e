use super::*;

fn read(text: &str) -> Result<Option<Rc<YamlNode>>, YamlProblem> {
    parse(text, 0, &mut Vec::new())
}

fn code(text: &str) -> &'static str {
    read(text).map(|_| ()).unwrap_err().code
}

fn show(node: &YamlNode) -> String {
    match &node.value {
        YamlValue::Scalar(scalar) => format!("{:?}:{}", scalar.kind, scalar.text),
        YamlValue::List(items) => format!(
            "[{}]",
            items
                .iter()
                .map(|item| show(item))
                .collect::<Vec<_>>()
                .join(", ")
        ),
        YamlValue::Map(map) => format!(
            "{{{}}}",
            map.entries
                .iter()
                .map(|entry| format!("{}={}", entry.key, show(&entry.value)))
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}

fn shown(text: &str) -> String {
    show(&read(text).unwrap().unwrap())
}

#[test]
fn merge_keys_follow_pyyaml() {
    let text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 0}\n";
    let tree = shown(text);
    assert!(
        tree.ends_with("c={x=Int(0):0, y=Int(1):1, z=Int(2):2}}"),
        "{tree}"
    );
    assert_eq!(shown("{'<<': 1}"), "{<<=Int(1):1}");
    assert_eq!(code("<<: 1"), "yaml-syntax");
}

#[test]
fn tags_and_quotes_decide_the_type() {
    assert_eq!(
        shown("[!!str 1, \"1\", !!int '3', !!float 2, ! 5, 'yes', !!bool yes]"),
        "[Text:1, Text:1, Int(3):3, Float(2.0):2, Text:5, Text:yes, Bool(true):yes]"
    );
    assert_eq!(code("!!python/object:os.system x"), "unknown-tag");
    assert_eq!(code("!!set {a}"), "unknown-tag");
    assert_eq!(code("!!int x"), "yaml-syntax");
}

#[test]
fn the_later_of_two_keys_wins_and_is_reported() {
    let mut warnings = Vec::new();
    let tree = parse("a: 1\nb: 2\na: 3\n", 0, &mut warnings)
        .unwrap()
        .unwrap();
    assert_eq!(show(&tree), "{a=Int(3):3, b=Int(2):2}");
    assert_eq!(warnings.len(), 1);
    assert_eq!(
        (warnings[0].span.start, warnings[0].related.unwrap().0.start),
        (10, 0)
    );
}

#[test]
fn malicious_documents_are_refused() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let below = format!("*a{}", level - 1);
        bomb.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            [below.as_str(); 9].join(", ")
        ));
    }
    assert_eq!(code(&bomb), "alias-bomb");
    assert_eq!(code(&"- ".repeat(100_000)), "too-deep");
    assert_eq!(code("&a [*a]"), "recursive-alias");
    assert_eq!(code("*a"), "yaml-syntax");
    assert_eq!(code("{[1]: 2}"), "yaml-syntax");
    assert_eq!(code("a: 1\n---\nb: 2\n"), "several-documents");
    assert!(read(&"[".repeat(1_000_000)).is_err());
    assert!(read("").unwrap().is_none());
    assert!(read("# nothing\n").unwrap().is_none());
}

#[test]
fn spans_are_bytes_of_the_text() {
    let text = "ключ: значение # ё\nb: [é, x]\n";
    let tree = read(text).unwrap().unwrap();
    let YamlValue::Map(map) = &tree.value else {
        panic!("not a map")
    };
    let at = |span: Span| &text[span.start as usize..span.end as usize];
    assert_eq!(at(map.entries[0].key_span), "ключ");
    assert_eq!(at(map.entries[0].value.span), "значение");
    let YamlValue::List(items) = &map.entries[1].value.value else {
        panic!("not a list")
    };
    assert_eq!(at(items[1].span), "x");
}
