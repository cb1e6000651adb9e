//! Pulls of images from registries.

use std::sync::Arc;

use async_trait::async_trait;
use nodeyard_driver_container::{
    ContainerImage, ContainerLabelOptions, RuntimeCall, RuntimeCallError, RuntimeResponse,
    RuntimeTransport,
};

use crate::common::{create, driver_through, options, order};
use crate::emulated::EmulatedRuntime;

/// A runtime that pulls from two registries: one never responds, the other has no image.
#[derive(Debug, Default)]
struct Registries(EmulatedRuntime);

#[async_trait]
impl RuntimeTransport for Registries {
    async fn call(&self, call: RuntimeCall) -> Result<RuntimeResponse, RuntimeCallError> {
        if !call.uri.contains("fromImage=") {
            return self.0.call(call).await;
        }
        if call.uri.contains("hanging") {
            std::future::pending::<()>().await;
        }
        Ok(RuntimeResponse {
            status: 404,
            body: r#"{"message": "manifest unknown"}"#.into(),
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_registry_does_not_block_other_labels() {
    let reference = |text: &str| ContainerImage::Reference(text.into());
    let mut options = options("pulls", |label| {
        label.image = reference("hanging.example/image:1");
    });
    let other = ContainerLabelOptions::new("other".into(), reference("prompt.example/image:1"));
    let pool = options.pools.first_mut().unwrap();
    pool.labels.push(other);
    let driver = driver_through(options, Arc::new(Registries::default()));
    let (hanging, mut prompt) = (order("pulls", 1), order("pulls", 2));
    prompt.label = "other".into();
    tokio::select! {
        biased;
        end = create(&driver, &hanging) => panic!("the registry does not respond: {end:?}"),
        end = create(&driver, &prompt) => {
            let (error, _) = end.unwrap_err();
            assert!(error.to_string().contains("manifest unknown"), "{error}");
        }
    }
}
