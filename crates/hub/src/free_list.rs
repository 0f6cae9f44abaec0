//! Numbers of elements that have been removed from a table: the next elements get them.

#[derive(Debug, Default)]
pub(crate) struct FreeList(Vec<u32>);

impl FreeList {
    pub(crate) const fn new() -> FreeList {
        FreeList(Vec::new())
    }

    /// Number of free places in the table.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the number that the next element of `table` gets.
    pub(crate) fn next<T>(&self, table: &[T]) -> u32 {
        self.0.last().copied().unwrap_or(table.len() as u32)
    }

    /// Adds an element to `table`. Returns its number.
    pub(crate) fn place<T>(&mut self, table: &mut Vec<T>, element: T) -> u32 {
        let Some(number) = self.0.pop() else {
            table.push(element);
            return (table.len() - 1) as u32;
        };
        table[number as usize] = element;
        number
    }

    /// Notes that the element with this number has been removed.
    pub(crate) fn push(&mut self, number: u32) {
        self.0.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_removed_elements_are_used_again_before_the_table_grows() {
        let (mut table, mut free) = (Vec::new(), FreeList::new());
        for expected in 0..3 {
            assert_eq!(free.next(&table), expected);
            assert_eq!(free.place(&mut table, 'a'), expected);
        }
        free.push(1);
        assert_eq!((free.len(), free.next(&table)), (1, 1));
        assert_eq!((free.place(&mut table, 'b'), free.place(&mut table, 'c')), (1, 3));
        assert_eq!((table, free.len()), (vec!['a', 'b', 'a', 'c'], 0));
    }
}
