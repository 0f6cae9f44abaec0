//! A JSON API over items in memory.
//!
//! ```sh
//! cargo run -p stilling --example json_api
//! curl -i -d '{"name":"tea","price":250}' http://127.0.0.1:9000/items
//! curl http://127.0.0.1:9000/items
//! curl http://127.0.0.1:9000/items/1
//! curl -i -X DELETE http://127.0.0.1:9000/items/1
//! curl -i -d '{"name":""}' http://127.0.0.1:9000/items    # 422, with the reason
//! ```
//!
//! All handlers are quick, so they run in the shards; the lock is held briefly.
//! Handlers that query a database belong in `worker` routes, which look the same.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use stilling::ServeConfig;
use stilling::http::{Method, Request, Response, Routes, Status};

/// Maximum number of items. More: 503.
const ITEMS_MAX: usize = 10_000;

/// Maximum bytes of a name.
const NAME_SIZE_MAX: usize = 100;

#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ShopItem {
    name: String,
    /// In cents.
    price: u32,
}

#[derive(Serialize)]
struct ItemWithId<'a> {
    id: u64,
    #[serde(flatten)]
    item: &'a ShopItem,
}

#[derive(Default)]
struct ShopItems {
    items: BTreeMap<u64, ShopItem>,
    last: u64,
}

type SharedShop = Arc<Mutex<ShopItems>>;

/// Locks the items. A poisoned lock is safe to use: a handler that panics leaves no item incomplete.
fn lock(shop: &SharedShop) -> MutexGuard<'_, ShopItems> {
    shop.lock().unwrap_or_else(PoisonError::into_inner)
}

fn json(status: Status, value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => Response::json(text + "\n").with_status(status),
        Err(_) => Status::InternalServerError.into(),
    }
}

/// An error as JSON, like every response.
fn json_error(status: Status, why: impl ToString) -> Response {
    json(status, &serde_json::json!({ "error": why.to_string() }))
}

fn list(shop: &SharedShop) -> Response {
    let items = lock(shop);
    json(Status::Ok, &items.items.iter().map(|(id, item)| ItemWithId { id: *id, item }).collect::<Vec<_>>())
}

fn add(shop: &SharedShop, request: &Request<'_>) -> Result<Response, Response> {
    let item: ShopItem =
        serde_json::from_slice(request.body()).map_err(|error| json_error(Status::BadRequest, error))?;
    if item.name.is_empty() || item.name.len() > NAME_SIZE_MAX {
        let why = format!("a name has 1 to {NAME_SIZE_MAX} bytes, this one has {}", item.name.len());
        return Err(json_error(Status::UnprocessableContent, why));
    }
    let mut items = lock(shop);
    if items.items.len() >= ITEMS_MAX {
        return Err(json_error(
            Status::ServiceUnavailable,
            format!("the maximum of {ITEMS_MAX} items is reached"),
        ));
    }
    items.last += 1;
    let id = items.last;
    let answer = json(Status::Created, &ItemWithId { id, item: &item });
    items.items.insert(id, item);
    Ok(answer.with_header("Location", format!("/items/{id}")))
}

fn id(request: &Request<'_>) -> Result<u64, Response> {
    let text = request.param("id").unwrap_or_default();
    text.parse().map_err(|_| json_error(Status::BadRequest, format!("`{text}` is not a number")))
}

fn show(shop: &SharedShop, request: &Request<'_>) -> Result<Response, Response> {
    let id = id(request)?;
    let items = lock(shop);
    let item = items.items.get(&id).ok_or_else(|| json_error(Status::NotFound, format!("no item {id}")))?;
    Ok(json(Status::Ok, &ItemWithId { id, item }))
}

fn delete(shop: &SharedShop, request: &Request<'_>) -> Result<Response, Response> {
    let id = id(request)?;
    match lock(shop).items.remove(&id) {
        Some(_) => Ok(Response::new(Status::NoContent)),
        None => Err(json_error(Status::NotFound, format!("no item {id}"))),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:9000".to_owned()).parse()?;
    let shop = SharedShop::default();
    let with = |handler: fn(&SharedShop, &Request<'_>) -> Result<Response, Response>| {
        let shop = Arc::clone(&shop);
        move |request: &Request<'_>| handler(&shop, request)
    };
    let routes = Routes::new()
        .inline(Method::Get, "/items", with(|shop, _| Ok(list(shop))))
        .inline(Method::Post, "/items", with(add))
        .inline(Method::Get, "/items/{id}", with(show))
        .inline(Method::Delete, "/items/{id}", with(delete));
    Ok(stilling::serve(ServeConfig { listen: vec![address], ..ServeConfig::default() }, routes)?)
}
