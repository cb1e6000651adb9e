//! Components, as they register themselves.

use nodeyard_model::{Component, ComponentKind, ComponentState, PoolComponent, ProviderName};
use nodeyard_store::{TreePath, Version};

use crate::registry::bed;

#[tokio::test]
async fn a_component_registers_changes_and_leaves() {
    let bed = bed();
    let components = bed.registry.components();
    components.prepare().await.unwrap();
    let view = components.pool_view().unwrap();
    let provider = ProviderName::new("cloud").unwrap();
    let mut pool = PoolComponent::new("np01".into(), "np01-1".into(), "main".into(), provider);
    let mut twin = pool.clone();
    twin.id = "np01-2".into();
    let registration = components.register_pool(&pool).unwrap();
    let other = components.register_pool(&twin).unwrap();
    let launcher = components
        .register(&Component::new("np01".into(), ComponentKind::Launcher))
        .unwrap();
    for registration in [&registration, &other, &launcher] {
        registration.path().wait_for(Option::is_some).await.unwrap();
    }
    let mut ids: Vec<_> = components
        .pools()
        .await
        .unwrap()
        .into_iter()
        .map(|pool| pool.id)
        .collect();
    ids.sort();
    assert_eq!(ids, ["np01-1".into(), "np01-2".into()]);
    let place = registration.path().borrow().clone().unwrap();
    assert!(
        place.name().starts_with("np010000000"),
        "no separator: {place}"
    );
    let stat = bed.registry.tree().stat(&place).await.unwrap().unwrap();
    assert!(stat.is_ephemeral());

    pool.state = ComponentState::Running;
    registration.update(&pool);
    let mut changes = view.changes();
    loop {
        view.synced().await.unwrap();
        let shown = view.get(&place.name().to_owned());
        if shown.is_some_and(|item| item.value.state == ComponentState::Running) {
            break;
        }
        changes.next().await;
    }
    registration.end().await;
    assert_eq!(components.pools().await.unwrap(), [twin]);
    assert_eq!(
        components
            .list(ComponentKind::Launcher)
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(components.list(ComponentKind::Builder).await.unwrap(), []);
}

#[tokio::test]
async fn a_component_that_somebody_removed_comes_back() {
    let bed = bed();
    let mut component = Component::new("nb01".into(), ComponentKind::Builder);
    let components = bed.registry.components();
    let registration = components.register(&component).unwrap();
    let mut place = registration.path();
    let first = place.wait_for(Option::is_some).await.unwrap().clone();
    let mut last = first.unwrap();
    // Whether or not there is something new to say.
    for state in [ComponentState::Stopped, ComponentState::Running] {
        component.state = state;
        registration.update(&component);
        let tree = bed.registry.tree();
        tree.delete(&last, Version::Any).await.unwrap();
        let elsewhere = |path: &Option<TreePath>| path.as_ref() != Some(&last);
        let next = place.wait_for(elsewhere).await.unwrap().clone().unwrap();
        let listed = components.list(ComponentKind::Builder).await.unwrap();
        assert_eq!(listed, [component.clone()]);
        assert!(next.name() > last.name());
        last = next;
    }
}
