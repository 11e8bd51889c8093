//! Calls to Daytona's API.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use moltis_config::value::secret::Secret;
use moltis_config::value::text::Url;
use moltis_config::value::{Context, Text};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::toolbox::Toolbox;
use super::wire::{Create, Listed, NetworkSettings, Page, ProxyUrl, Told};
use crate::http::{Call, Client, Failure, escaped};
use crate::retry::Again;

/// How long the head of an answer may take: of questions, and of what changes something.
const QUESTION: Duration = Duration::from_secs(30);
const CHANGE: Duration = Duration::from_secs(90);

/// The version that the daemon is told. From 0.167.0 on it keeps standard output and standard error apart.
const SPOKEN: &str = "0.218.0";

/// Daytona, for one key.
pub struct Daytona {
    url: String,
    key: Secret,
    client: Client,
}

impl Daytona {
    /// At this address.
    pub fn new(url: &str, key: Secret) -> Self {
        let client = Client::new(url, key.clone(), headers());
        Self { url: url.trim_end_matches('/').to_owned(), key, client }
    }

    /// What speaks to it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, Failure> {
        self.client.json(&call).await
    }

    /// Makes a sandbox. Its name is used once, so that a second try finds what the first one made.
    pub async fn create(&self, create: &Create<'_>) -> Result<Told, Failure> {
        let mut call = with_body(Method::POST, "/sandbox".to_owned(), create, Again::Never)?;
        call.within = CHANGE;
        self.json(call).await
    }

    /// A sandbox by id or name.
    pub async fn sandbox(&self, name: &str) -> Result<Told, Failure> {
        self.json(call(Method::GET, format!("/sandbox/{}", escaped(name)), Again::Safe)).await
    }

    /// The sandboxes with this label.
    pub async fn labelled(&self, label: &str, value: &str) -> Result<Vec<Listed>, Failure> {
        let labels = serde_json::json!({ label: value }).to_string();
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..100 {
            let mut path = format!("/sandbox?limit=100&labels={}", escaped(&labels));
            if let Some(cursor) = &cursor {
                path.push_str(&format!("&cursor={}", escaped(cursor)));
            }
            let page: Page = self.json(call(Method::GET, path, Again::Safe)).await?;
            all.extend(page.items);
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        Ok(all)
    }

    /// Whether the key may be used.
    pub async fn try_out(&self) -> Result<(), Failure> {
        let _: Page = self.json(call(Method::GET, "/sandbox?limit=1".to_owned(), Again::Safe)).await?;
        Ok(())
    }

    /// Starts one that was stopped. One that runs is left alone.
    pub async fn start(&self, id: &str) -> Result<Told, Failure> {
        let mut call = call(Method::POST, format!("/sandbox/{}/start", escaped(id)), Again::Safe);
        call.within = CHANGE;
        self.json(call).await
    }

    /// Removes it.
    pub async fn delete(&self, name: &str) -> Result<(), Failure> {
        let mut call = call(Method::DELETE, format!("/sandbox/{}", escaped(name)), Again::Safe);
        call.within = CHANGE;
        self.client.send(&call).await.map(drop)
    }

    /// Takes its network away, or gives it back: with a list for the hosts on it alone.
    pub async fn network(&self, id: &str, block: bool, list: Option<&str>) -> Result<Told, Failure> {
        let settings = NetworkSettings { network_block_all: block, domain_allow_list: list };
        let path = format!("/sandbox/{}/network-settings", escaped(id));
        self.json(with_body(Method::POST, path, &settings, Again::Safe)?).await
    }

    /// Lets it stop after this many minutes without use.
    pub async fn stop_after(&self, id: &str, minutes: u64) -> Result<Told, Failure> {
        let path = format!("/sandbox/{}/autostop/{minutes}", escaped(id));
        self.json(call(Method::POST, path, Again::Safe)).await
    }

    /// Says that it is in use, which begins its time without use anew.
    pub async fn used(&self, id: &str) -> Result<(), Failure> {
        let call = call(Method::POST, format!("/sandbox/{}/last-activity", escaped(id)), Again::Safe);
        self.client.send(&call).await.map(drop)
    }

    /// What runs commands in a sandbox. Newer servers name it with the sandbox or when they are asked; at older ones it
    /// lies below the API.
    pub async fn toolbox(self: &Arc<Self>, told: &Told) -> Result<Arc<Toolbox>, Failure> {
        let named = match &told.toolbox_proxy_url {
            Some(url) if !url.is_empty() => Some(url.clone()),
            _ => {
                let path = format!("/sandbox/{}/toolbox-proxy-url", escaped(&told.id));
                match self.json::<ProxyUrl>(call(Method::GET, path, Again::Safe)).await {
                    Ok(told) => Some(told.url),
                    Err(failure) if failure.status() == Some(404) => None,
                    Err(failure) => return Err(failure),
                }
            }
        };
        let id = escaped(&told.id);
        let url = match named {
            // The key goes there.
            Some(url) if Url::parse(&url, &Context::default()).is_err() => {
                return Err(Failure::Unlike(format!(
                    "the toolbox is said to be at {}, which is neither https nor this machine",
                    self.client.scrub(&url)
                )));
            }
            Some(url) => format!("{}/{id}", url.trim_end_matches('/')),
            None => format!("{}/toolbox/{id}/toolbox", self.url),
        };
        let client = Client::new(&url, self.key.clone(), headers());
        Ok(Arc::new(Toolbox::new(client, Arc::clone(self), told.id.clone())))
    }
}

fn headers() -> Vec<(&'static str, String)> {
    vec![("x-daytona-source", "moltis".to_owned()), ("x-daytona-sdk-version", SPOKEN.to_owned())]
}

/// A call without a body.
pub fn call(method: Method, path: String, again: Again) -> Call {
    Call { method, path, body: Bytes::new(), content: "", headers: Vec::new(), again, within: QUESTION }
}

/// A call with a body of JSON.
pub fn with_body(method: Method, path: String, body: &impl Serialize, again: Again) -> Result<Call, Failure> {
    let mut call = call(method, path, again);
    call.body = serde_json::to_vec(body).map_err(|error| Failure::Unlike(error.to_string()))?.into();
    call.content = "application/json";
    Ok(call)
}
