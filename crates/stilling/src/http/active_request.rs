//! The data of the request that an HTTP connection handles.

use super::buffered_request::BufferedRequest;
use super::delegated_connection::Delegate;
use super::forwarded_request::ForwardedRequest;
use super::job_input::JobInput;
use super::pending_publication::PendingPublication;
use super::subscribe::ProtocolSwitch;
use super::unsent_body::UnsentBody;
use crate::upstream::RequestId;

/// Data of the current request that does not fit into the connection's slot.
#[derive(Debug)]
pub(super) enum ActiveRequest {
    Idle,
    /// A buffered request, possibly without its whole body.
    Request(Box<BufferedRequest>),
    /// A response that is sent piece by piece.
    Response(Box<UnsentBody>),
    /// The function that a worker will run with the connection.
    Delegate(Delegate),
    /// The data of a queued job.
    Job(JobInput),
    /// The id of a request that a worker process is to answer.
    Submitted(RequestId),
    /// A request to a worker process with a body, or with a response that does not fit into the output room.
    Forwarded(Box<ForwardedRequest>),
    /// Messages sent to the hub.
    PendingPublication(Box<PendingPublication>),
    /// The protocol that the connection continues in.
    Switch(Box<ProtocolSwitch>),
}
