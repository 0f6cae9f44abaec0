//! Marks that a session reports to the hub when its output has been sent.

/// The marks of a connection whose output is blocked. Boxed because they are rare.
#[derive(Debug, Default)]
pub(crate) struct DelayedMarks(Option<Box<MarkList>>);

#[derive(Debug, Default)]
struct MarkList(Vec<u64>);

impl DelayedMarks {
    pub(crate) fn push(&mut self, mark: u64) {
        self.0.get_or_insert_default().0.push(mark);
    }

    /// Takes all marks, in their order.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = u64> + use<> {
        self.0.take().into_iter().flat_map(|list| list.0)
    }
}
