//! What the records of a lot say.

use super::message::{CloseRecord, LotCommand, LotMessage};

/// The records of a lot up to one of them, as far as they are known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LotRecords {
    pub(super) price: Option<u64>,
    bids: u64,
    pub(super) is_closed: bool,
}

impl LotRecords {
    /// Adds the next record. An error: a gate must not store it.
    pub(super) fn add(&mut self, LotMessage { price, command, .. }: LotMessage) -> Result<(), String> {
        if self.is_closed {
            return Err(format!("{command:?} behind the close"));
        }
        if command == LotCommand::Close {
            self.is_closed = true;
            return Ok(());
        }
        self.bids += u64::from(command == LotCommand::Bid);
        match self.price.replace(price) {
            Some(before) if command == LotCommand::Open || price <= before => {
                Err(format!("{command:?} at {price} after {before}"))
            }
            _ => Ok(()),
        }
    }

    /// Compares the record of a close with those before it. `is_complete`: all of them are known.
    pub(super) fn check_close(self, close: CloseRecord, is_complete: bool) -> Result<(), String> {
        let CloseRecord { price, bids, .. } = close;
        let is_right = match is_complete {
            true => self.price == Some(price) && self.bids == bids,
            false => self.price <= Some(price) && self.bids <= bids,
        };
        if is_right { Ok(()) } else { Err(format!("{close:?} closes {self:?}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(command: LotCommand, price: u64) -> LotMessage {
        LotMessage { lot: 0, price, command }
    }

    #[test]
    fn prices_rise_until_the_close_which_names_the_last() {
        let mut lot = LotRecords::default();
        lot.add(message(LotCommand::Open, 10)).expect("it is the first");
        assert!(LotRecords { ..lot }.add(message(LotCommand::Open, 11)).is_err());
        assert!(LotRecords { ..lot }.add(message(LotCommand::Bid, 10)).is_err());
        lot.add(message(LotCommand::Bid, 12)).expect("it beats the price");
        lot.add(message(LotCommand::Close, 0)).expect("it is open");
        let close = |price, bids| CloseRecord { price, bid: None, bids };
        assert_eq!(lot.check_close(close(12, 1), true), Ok(()));
        for (price, bids, may_be_incomplete) in [(13, 1, true), (12, 2, true), (11, 1, false), (12, 0, false)]
        {
            assert!(lot.check_close(close(price, bids), true).is_err(), "{price}, {bids}");
            assert_eq!(
                lot.check_close(close(price, bids), false).is_ok(),
                may_be_incomplete,
                "{price}, {bids}"
            );
        }
        assert!(lot.add(message(LotCommand::Bid, 20)).is_err() && lot.is_closed);
    }
}
