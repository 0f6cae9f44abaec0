//! Options beyond their syntax: properties of numbers, and what a recipient recognises.

use crate::coap::{
    CoapMessage, Code, MessageType, MessageWriter, OptionFormat, OptionNumber, Token, UnrecognisedOption,
};

/// Builds a request with these options.
fn request(options: &[(OptionNumber, &[u8])]) -> Vec<u8> {
    let mut buffer = [0; 2048];
    let mut writer = MessageWriter::new(&mut buffer, MessageType::Confirmable, Code::GET, 0, Token::EMPTY)
        .expect("room for a header");
    for (number, value) in options {
        writer.option(*number, value).expect("room for an option, in order");
    }
    writer.finish().to_vec()
}

/// Returns the numbers of the recognised options, or the unknown critical option.
fn recognised(options: &[(OptionNumber, &[u8])]) -> Result<Vec<OptionNumber>, UnrecognisedOption> {
    let datagram = request(options);
    let message = CoapMessage::parse(&datagram).expect("a message");
    message.options.recognised(|_| true).map(|result| result.map(|option| option.number)).collect()
}

/// RFC 7252, table 4, and the registrations of the other RFCs.
#[test]
fn numbers_have_the_registered_properties() {
    let names = |is: fn(OptionNumber) -> bool| {
        let numbers = OptionNumber::ALL.iter().filter(|number| is(**number));
        numbers.map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        names(OptionNumber::is_critical),
        "If-Match Uri-Host If-None-Match Uri-Port Uri-Path Uri-Query Accept Block2 Block1 Proxy-Uri Proxy-Scheme"
    );
    assert_eq!(
        names(OptionNumber::is_unsafe),
        "Uri-Host Observe Uri-Port Uri-Path Max-Age Uri-Query Block2 Block1 Proxy-Uri Proxy-Scheme No-Response"
    );
    assert_eq!(names(OptionNumber::is_no_cache_key), "Size2 Size1 Echo");
    assert!(OptionNumber::ALL.is_sorted());
    let if_match = OptionNumber::IF_MATCH.definition().expect("a known option");
    assert_eq!((if_match.format, if_match.is_repeatable), (OptionFormat::Opaque, true));
    assert_eq!(OptionNumber(65_001).to_string(), "option 65001");
}

/// RFC 7252 §5.4.1.
#[test]
fn unknown_options_are_skipped_or_refused() {
    let path: (OptionNumber, &[u8]) = (OptionNumber::URI_PATH, b"a");
    assert_eq!(recognised(&[path, (OptionNumber(65_000), b"x")]), Ok(vec![OptionNumber::URI_PATH]));
    assert_eq!(
        recognised(&[path, (OptionNumber(65_001), b"x")]),
        Err(UnrecognisedOption(OptionNumber(65_001)))
    );
    let datagram = request(&[path]);
    let mut options = CoapMessage::parse(&datagram).expect("a message").options.recognised(|_| false);
    assert_eq!(options.next(), Some(Err(UnrecognisedOption(OptionNumber::URI_PATH))));
}

/// RFC 7252 §5.4.3.
#[test]
fn a_length_out_of_range_makes_an_option_unknown() {
    assert_eq!(recognised(&[(OptionNumber::ACCEPT, b"abc")]), Err(UnrecognisedOption(OptionNumber::ACCEPT)));
    assert_eq!(recognised(&[(OptionNumber::URI_HOST, b"")]), Err(UnrecognisedOption(OptionNumber::URI_HOST)));
    assert_eq!(recognised(&[(OptionNumber::ETAG, b""), (OptionNumber::OBSERVE, b"1234")]), Ok(vec![]));
    assert_eq!(recognised(&[(OptionNumber::URI_PATH, &[b'a'; 255])]), Ok(vec![OptionNumber::URI_PATH]));
    assert_eq!(
        recognised(&[(OptionNumber::URI_PATH, &[b'a'; 256])]),
        Err(UnrecognisedOption(OptionNumber::URI_PATH))
    );
}

/// RFC 7252 §5.4.5.
#[test]
fn a_repetition_makes_an_option_unknown() {
    let twice = |number: OptionNumber| recognised(&[(number, b"1"), (number, b"2")]);
    assert_eq!(twice(OptionNumber::URI_QUERY), Ok(vec![OptionNumber::URI_QUERY; 2]));
    assert_eq!(twice(OptionNumber::ACCEPT), Err(UnrecognisedOption(OptionNumber::ACCEPT)));
    assert_eq!(twice(OptionNumber::OBSERVE), Ok(vec![OptionNumber::OBSERVE]));
}
