//! Fairness, limits and determinism, on random fleets, requests and events.

use std::time::Duration;

use crate::common::{Launcher, ask, limits, setup};
use nodeyard_model::{NodeRequest, ProviderName};
use nodeyard_plan::Policy;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

#[derive(Debug, Clone)]
enum Event {
    Submit {
        labels: Vec<&'static str>,
        precedence: u16,
        priority: i64,
        tenant: Option<&'static str>,
        provider: Option<&'static str>,
    },
    Reprioritise(Index, i64),
    Cancel(Index),
    CarryOut,
    Finish(Index),
    Fail(Index),
    QuotaError(Index),
    Return(Index),
    Clean,
    Wait(u8),
    /// Begins or ends it.
    DrainPool(Index),
    DrainLabel(&'static str),
    Reload(&'static str),
}

fn labels() -> impl Strategy<Value = Vec<&'static str>> {
    vec(select(vec!["small", "small", "large", "gpu", "disk"]), 1..5)
}

fn event() -> impl Strategy<Value = Event> {
    let submit = (
        labels(),
        select(vec![100, 200, 200, 200, 300]),
        0..3_i64,
        select(vec![None, Some("t"), Some("u")]),
        select(vec![None, None, None, Some("one"), Some("two")]),
    );
    let submit =
        submit.prop_map(
            |(labels, precedence, priority, tenant, provider)| Event::Submit {
                labels,
                precedence,
                priority,
                tenant,
                provider,
            },
        );
    let pick = any::<Index>;
    prop_oneof![
        8 => submit,
        1 => (pick(), 0..3_i64).prop_map(|(i, p)| Event::Reprioritise(i, p)),
        1 => pick().prop_map(Event::Cancel),
        12 => Just(Event::CarryOut),
        8 => pick().prop_map(Event::Finish),
        1 => pick().prop_map(Event::Fail),
        1 => pick().prop_map(Event::QuotaError),
        5 => pick().prop_map(Event::Return),
        4 => Just(Event::Clean),
        2 => any::<u8>().prop_map(Event::Wait),
        1 => pick().prop_map(Event::DrainPool),
        1 => select(vec!["small", "gpu"]).prop_map(Event::DrainLabel),
        1 => select(vec!["one", "two"]).prop_map(Event::Reload),
    ]
}

#[derive(Debug, Clone)]
struct Shape {
    pool_servers: [i64; 3],
    provider_cores: [i64; 2],
    tenant_servers: i64,
    gpus: i64,
    volumes: i64,
    max_launches: Option<usize>,
    priorities: [i64; 3],
    patience: u64,
}

fn shape() -> impl Strategy<Value = Shape> {
    (
        [1..8_i64, 1..8, 0..6],
        [8..24_i64, 8..24],
        4..12_i64,
        1..4_i64,
        1..4_i64,
        select(vec![None, None, Some(1), Some(3)]),
        [1..4_i64, 1..4, 1..4],
        select(vec![0, 60]),
    )
        .prop_map(
            |(
                pool_servers,
                provider_cores,
                tenant_servers,
                gpus,
                volumes,
                max_launches,
                priorities,
                patience,
            )| Shape {
                pool_servers,
                provider_cores,
                tenant_servers,
                gpus,
                volumes,
                max_launches,
                priorities,
                patience,
            },
        )
}

fn launcher(shape: &Shape) -> Launcher {
    let mut launcher = Launcher::new(Policy {
        patience: Duration::from_secs(shape.patience),
    });
    let [cores_one, cores_two] = shape.provider_cores;
    launcher.provider(
        "one",
        limits(&[("cores", cores_one), ("gpu", shape.gpus)]),
        shape.max_launches,
    );
    launcher.provider("two", limits(&[("cores", cores_two)]), shape.max_launches);
    let pools = [
        ("one", "a", &["small", "large", "gpu", "disk"][..]),
        ("one", "b", &["small", "gpu"]),
        ("two", "c", &["small", "large", "disk"]),
    ];
    for (index, (provider, pool, labels)) in pools.into_iter().enumerate() {
        let most = limits(&[
            ("instances", shape.pool_servers[index]),
            ("volume-gb", 40 * shape.volumes),
        ]);
        let setup = setup(provider, pool, labels, most);
        launcher.pool(setup, shape.priorities[index]);
    }
    let most = limits(&[
        ("instances", shape.tenant_servers),
        ("volumes", shape.volumes),
    ]);
    launcher.tenants(&[("t", most)]);
    launcher
}

fn play(launcher: &mut Launcher, event: &Event) {
    let choose = |index: &Index, count: usize| (count > 0).then(|| index.index(count));
    match event {
        Event::Submit {
            labels,
            precedence,
            priority,
            tenant,
            provider,
        } => {
            let mut record = ask(labels, launcher.now);
            record.relative_priority = *priority;
            record.tenant_name = tenant.map(Into::into);
            record.provider = provider.map(|name| ProviderName::new(name).unwrap());
            launcher.submit(*precedence, record);
        }
        Event::Reprioritise(index, priority) => {
            let waiting = launcher.waiting();
            if let Some(index) = choose(index, waiting.len()) {
                let id = waiting[index];
                let record: &mut NodeRequest = launcher.requests.get_mut(&id).unwrap();
                record.relative_priority = *priority;
                launcher.scheduler.put_request(id, record, launcher.now);
            }
        }
        Event::Cancel(index) => {
            let waiting = launcher.waiting();
            if let Some(index) = choose(index, waiting.len()) {
                launcher.cancel(waiting[index]);
            }
        }
        Event::CarryOut => {
            launcher.carry_out_one();
        }
        Event::Finish(index) | Event::Fail(index) | Event::QuotaError(index) => {
            let building = launcher.building();
            if let Some(index) = choose(index, building.len()) {
                match event {
                    Event::Finish(_) => launcher.finish_launch(building[index]),
                    Event::Fail(_) => launcher.fail_launch(building[index], false),
                    _ => launcher.fail_launch(building[index], true),
                }
            }
        }
        Event::Return(index) => {
            let fulfilled = launcher.fulfilled();
            if let Some(index) = choose(index, fulfilled.len()) {
                launcher.use_and_return(fulfilled[index]);
            }
        }
        Event::Clean => launcher.clean(),
        Event::Wait(seconds) => launcher.advance(f64::from(*seconds)),
        Event::DrainPool(index) => {
            let pools: Vec<_> = launcher.pools.keys().cloned().collect();
            let pool = &pools[index.index(pools.len())];
            let drained = launcher.drains.pools.contains_key(pool);
            launcher.drain_pool(pool, !drained);
        }
        Event::DrainLabel(label) => {
            let drained = launcher.drains.labels.contains_key(*label);
            launcher.drain_label(label, !drained);
        }
        Event::Reload(provider) => {
            launcher.carry_out_all();
            launcher.reload(provider);
        }
    }
    launcher.decide();
    launcher.check();
}

/// Everything that was begun is finished, nothing new arrives.
fn drain(launcher: &mut Launcher) {
    launcher.undrain_all();
    for _ in 0..500 {
        if launcher.waiting().is_empty() {
            return;
        }
        launcher.advance(10.0);
        launcher.carry_out_all();
        for node in launcher.building() {
            if launcher.nodes.contains_key(&node) {
                launcher.finish_launch(node);
            }
        }
        for request in launcher.fulfilled() {
            launcher.use_and_return(request);
        }
        launcher.clean();
        launcher.decide();
        launcher.check();
    }
    let moment = nodeyard_plan::assign::DecisionInputs {
        now: launcher.now,
        seed: 0,
    };
    let stuck = launcher.waiting();
    let why: Vec<String> = stuck
        .iter()
        .filter_map(|id| launcher.scheduler.explain(*id, moment))
        .map(|explanation| explanation.to_string())
        .collect();
    panic!("I7: these are never served:\n{}", why.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// I1, I2 and I6 after every step; I7 in the end.
    #[test]
    fn limits_hold_and_every_request_ends(shape in shape(), events in vec(event(), 1..120)) {
        let mut launcher = launcher(&shape);
        for event in &events {
            play(&mut launcher, event);
        }
        drain(&mut launcher);
    }

    #[test]
    fn the_same_events_lead_to_the_same_decisions(
        shape in shape(),
        events in vec(event(), 1..60),
        seed in any::<u64>(),
    ) {
        let logs = [(); 2].map(|()| {
            let mut launcher = launcher(&shape);
            launcher.seed = seed;
            for event in &events {
                play(&mut launcher, event);
            }
            launcher.log
        });
        prop_assert_eq!(&logs[0], &logs[1]);
    }

    /// I7 against a stream of small requests that never ends: what is first in line when its patience ends is
    /// served while small ones keep coming.
    #[test]
    fn small_requests_do_not_pass_for_ever(
        size in 2..8_usize,
        run_time in vec(1..30_u32, 8),
        patience in select(vec![0_u64, 60]),
        tenant in any::<bool>(),
    ) {
        let mut launcher = Launcher::new(Policy { patience: Duration::from_secs(patience) });
        launcher.provider("one", limits(&[]), None);
        let unlimited = if tenant { 100 } else { 8 };
        launcher.pool(setup("one", "a", &["small"], limits(&[("instances", unlimited)])), 1);
        launcher.tenants(&[("t", limits(&[("instances", 8)]))]);
        let record = |labels: &[&str], launcher: &Launcher| {
            let mut record = ask(labels, launcher.now);
            record.tenant_name = Some("t".into());
            record
        };
        let mut ends: Vec<(f64, nodeyard_model::RequestId)> = Vec::new();
        let mut large = None;
        let mut started = 0;
        for round in 0..400 {
            for _ in 0..2 {
                let small = record(&["small"], &launcher);
                launcher.submit(200, small);
            }
            if round == 20 {
                let request = record(&vec!["small"; size], &launcher);
                large = Some(launcher.submit(200, request));
            }
            launcher.decide();
            launcher.carry_out_all();
            for node in launcher.building() {
                launcher.finish_launch(node);
            }
            launcher.check();
            let now = launcher.now.as_secs();
            for id in launcher.fulfilled() {
                if Some(id) == large {
                    return Ok(());
                }
                if !ends.iter().any(|(_, known)| *known == id) {
                    started += 1;
                    ends.push((now + f64::from(run_time[started % run_time.len()]), id));
                }
            }
            let (over, running) = ends.into_iter().partition(|(end, _)| *end <= now);
            ends = running;
            let over: Vec<_> = over;
            for (_, id) in over {
                launcher.use_and_return(id);
            }
            launcher.clean();
            launcher.advance(1.0);
        }
        prop_assert!(false, "I7: the large request is not served");
    }
}
