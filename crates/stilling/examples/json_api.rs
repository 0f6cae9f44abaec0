//! A JSON API over items in memory.
//!
//! ```sh
//! cargo run --example json_api
//! curl -i -d '{"name":"tea","price":250}' http://127.0.0.1:9000/items
//! curl http://127.0.0.1:9000/items
//! curl http://127.0.0.1:9000/items/1
//! curl -i -X DELETE http://127.0.0.1:9000/items/1
//! curl -i -d '{"name":""}' http://127.0.0.1:9000/items    # 422, and what is wrong with it
//! ```
//!
//! All of it is quick and in memory, so the handlers run in the shards; the lock is held for a few
//! instructions. What asks a database belongs in `worker` routes, which look the same.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use stilling::ServeConfig;
use stilling::http::{Method, Request, Response, Routes, Status};

/// Items at most. More: 507's nearest relative, 503.
const ITEMS_MAX: usize = 10_000;

/// Bytes of a name at most.
const NAME_SIZE_MAX: usize = 100;

#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Item {
    name: String,
    /// In cents.
    price: u32,
}

#[derive(Serialize)]
struct Numbered<'a> {
    id: u64,
    #[serde(flatten)]
    item: &'a Item,
}

#[derive(Default)]
struct Items {
    items: BTreeMap<u64, Item>,
    last: u64,
}

type Shared = Arc<Mutex<Items>>;

/// A handler that panicked has left no item half-made.
fn lock(shared: &Shared) -> MutexGuard<'_, Items> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn json(status: Status, value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => Response::json(text + "\n").with_status(status),
        Err(_) => Status::InternalServerError.into(),
    }
}

/// What is wrong, as JSON like everything else.
fn wrong(status: Status, why: impl ToString) -> Response {
    json(status, &serde_json::json!({ "error": why.to_string() }))
}

fn list(shared: &Shared) -> Response {
    let items = lock(shared);
    json(Status::Ok, &items.items.iter().map(|(id, item)| Numbered { id: *id, item }).collect::<Vec<_>>())
}

fn add(shared: &Shared, request: &Request<'_>) -> Result<Response, Response> {
    let item: Item =
        serde_json::from_slice(request.body()).map_err(|error| wrong(Status::BadRequest, error))?;
    if item.name.is_empty() || item.name.len() > NAME_SIZE_MAX {
        let why = format!("a name has 1 to {NAME_SIZE_MAX} bytes, this one has {}", item.name.len());
        return Err(wrong(Status::UnprocessableContent, why));
    }
    let mut items = lock(shared);
    if items.items.len() >= ITEMS_MAX {
        return Err(wrong(
            Status::ServiceUnavailable,
            format!("{ITEMS_MAX} items are all there is room for"),
        ));
    }
    items.last += 1;
    let id = items.last;
    let answer = json(Status::Created, &Numbered { id, item: &item });
    items.items.insert(id, item);
    Ok(answer.with_header("Location", format!("/items/{id}")))
}

fn id(request: &Request<'_>) -> Result<u64, Response> {
    let text = request.param("id").unwrap_or_default();
    text.parse().map_err(|_| wrong(Status::BadRequest, format!("`{text}` is not a number")))
}

fn show(shared: &Shared, request: &Request<'_>) -> Result<Response, Response> {
    let id = id(request)?;
    let items = lock(shared);
    let item = items.items.get(&id).ok_or_else(|| wrong(Status::NotFound, format!("no item {id}")))?;
    Ok(json(Status::Ok, &Numbered { id, item }))
}

fn delete(shared: &Shared, request: &Request<'_>) -> Result<Response, Response> {
    let id = id(request)?;
    match lock(shared).items.remove(&id) {
        Some(_) => Ok(Response::new(Status::NoContent)),
        None => Err(wrong(Status::NotFound, format!("no item {id}"))),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:9000".to_owned()).parse()?;
    let shared = Shared::default();
    let with = |handler: fn(&Shared, &Request<'_>) -> Result<Response, Response>| {
        let shared = Arc::clone(&shared);
        move |request: &Request<'_>| handler(&shared, request)
    };
    let routes = Routes::new()
        .inline(Method::Get, "/items", with(|shared, _| Ok(list(shared))))
        .inline(Method::Post, "/items", with(add))
        .inline(Method::Get, "/items/{id}", with(show))
        .inline(Method::Delete, "/items/{id}", with(delete));
    Ok(stilling::serve(ServeConfig { listen: vec![address], ..ServeConfig::default() }, routes)?)
}
