//! The crate's client against a running server. TEST_TARGETS has its addresses: TCP, Unix socket, memory socket.
use sortition::*;
use sortition_tests::{logits_of, options, parameters, VOCABULARY};
use std::env;
use std::sync::mpsc;
use std::sync::Arc;
use std::time::Duration;

const WIDTH: usize = VOCABULARY as usize;

fn target(index: usize) -> String {
    let targets = env::var("TEST_TARGETS").expect("TEST_TARGETS");
    targets.split(' ').nth(index).expect("three targets").to_string()
}

fn connect(index: usize, transport: Transport) -> Client {
    let targets = vec![target(index)];
    Client::connect(&ClientOptions { targets, transport, ..ClientOptions::default() }).unwrap()
}

/// Returns the token and the bits of its log probability.
fn drawn(results: &Results) -> (u32, u32) {
    let row = results.row(0).unwrap();
    let position = row.positions().next().unwrap();
    (position.token(), position.processed().unwrap().logprob.to_bits())
}

#[test]
fn every_transport_gives_the_bits_of_this_process() {
    let parameters = parameters().unwrap();
    for (index, transport) in [Transport::Grpc, Transport::Grpc, Transport::Ring].into_iter().enumerate() {
        let client = connect(index, transport);
        assert_eq!(client.transport().unwrap().transport, transport);
        let remote = client.open(&options("request-1", Some(&parameters))).unwrap();
        let local = Sequence::open(&options("request-1", Some(&parameters))).unwrap();
        let mut memory = client.allocate(4 * WIDTH as u64).unwrap();
        assert!(memory.is_shared() || transport == Transport::Grpc);
        for seed in 0..6 {
            memory.as_f32_mut()[..WIDTH].copy_from_slice(&logits_of(seed, WIDTH));
            let logits = &memory.as_f32()[..WIDTH];
            let there = client.step(&[Row::draw(&remote, logits)], VOCABULARY, StepOptions::default()).unwrap();
            let here = step(&[Row::draw(&local, logits)], VOCABULARY).unwrap();
            assert_eq!(drawn(&there), drawn(&here));
        }
    }
}

/// The test's other end asks the server whether these rows were compact.
#[test]
fn compact_rows_give_the_bits_of_this_process() {
    let parameters = parameters().unwrap();
    let rows = Rows::Compact(100);
    let client =
        Client::connect(&ClientOptions { targets: vec![target(0)], rows, ..ClientOptions::default() }).unwrap();
    let remote = client.open(&options("request-1", Some(&parameters))).unwrap();
    let local = Sequence::open(&options("request-1", Some(&parameters))).unwrap();
    for seed in 0..6 {
        let logits = logits_of(seed, WIDTH);
        let there = client.step(&[Row::draw(&remote, &logits)], VOCABULARY, StepOptions::default()).unwrap();
        let here = step(&[Row::draw(&local, &logits)], VOCABULARY).unwrap();
        assert_eq!(drawn(&there), drawn(&here));
    }
    let none = ClientOptions { targets: vec![target(0)], rows: Rows::Compact(0), ..ClientOptions::default() };
    assert_eq!(Client::connect(&none).unwrap_err().field, "ClientOptions::rows.count");
}

/// The test's other end verifies the receipts that this writes.
#[test]
fn receipts_are_returned() {
    let parameters = parameters().unwrap();
    let receipts = Receipts::new(Some(b"0123456789abcdef")).unwrap();
    assert_eq!(receipts.seed_line().unwrap(), "");
    let with_receipts = SequenceOptions { receipts: Some(&receipts), ..options("request-1", Some(&parameters)) };
    let client = connect(0, Transport::Auto);
    let sequence = client.open(&with_receipts).unwrap();
    for seed in 0..6 {
        let logits = logits_of(seed, WIDTH);
        client.step(&[Row::draw(&sequence, &logits)], VOCABULARY, StepOptions::default()).unwrap().token(0).unwrap();
    }
    let mut records = receipts.take().unwrap();
    assert!(records.len() > 600 && receipts.take().unwrap().is_empty());
    assert!(!receipts.await_end(Duration::ZERO).unwrap());
    let again = SequenceOptions { request_id: "request-2", ..with_receipts };
    assert_eq!(client.open(&again).unwrap_err().field, "options.receipts");
    drop(sequence);
    assert!(receipts.await_end(Duration::from_secs(20)).unwrap());
    records.extend(receipts.take().unwrap());
    let at = env::var("TEST_RECEIPTS").expect("TEST_RECEIPTS");
    std::fs::write(format!("{}.receipts", at), records).unwrap();
    std::fs::write(format!("{}.seeds", at), receipts.seed_line().unwrap()).unwrap();
    let unused = Receipts::new(None).unwrap();
    let here = SequenceOptions { receipts: Some(&unused), ..options("request-3", None) };
    assert_eq!(Sequence::open(&here).unwrap_err().code, Code::InvalidArgument);
}

struct OwnedDraw {
    sequence: Arc<Sequence>,
    logits: Vec<f32>,
}

impl StepOwner for OwnedDraw {
    fn rows(&self) -> Vec<Row<'_>> {
        vec![Row::draw(&self.sequence, &self.logits)]
    }
}

#[test]
fn async_step_returns_its_owner() {
    let client = connect(0, Transport::Auto);
    let sequence = Arc::new(client.open(&options("request-1", Some(&parameters().unwrap()))).unwrap());
    let (sender, receiver) = mpsc::channel();
    for seed in 0..3 {
        let owner = OwnedDraw { sequence: Arc::clone(&sequence), logits: logits_of(seed, WIDTH) };
        let sender = sender.clone();
        let options = StepOptions { timeout: Some(Duration::from_secs(20)), ..StepOptions::default() };
        let done = move |owner: OwnedDraw, results: Result<Results>| {
            sender.send((owner.logits.len(), results.unwrap().token(0))).unwrap();
            panic!("a panic ends here");
        };
        client.step_async(owner, VOCABULARY, options, done).unwrap();
        let (length, token) = receiver.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(length, WIDTH);
        token.unwrap();
    }
    assert_eq!(sequence.info().unwrap().position, 7);
    let owner = OwnedDraw { sequence, logits: vec![0.0] };
    let refused = client.step_async(owner, VOCABULARY, StepOptions::default(), |_, _| panic!("called"));
    assert_eq!(refused.unwrap_err().field, "rows[0].logits");
}

#[test]
fn client_may_be_dropped_in_its_callback() {
    let client = Arc::new(connect(1, Transport::Auto));
    let sequence = Arc::new(client.open(&options("request-1", None)).unwrap());
    let (sender, receiver) = mpsc::channel();
    let (owner, logits) = (Arc::clone(&client), logits_of(1, WIDTH));
    let done = move |draw: OwnedDraw, results: Result<Results>| {
        drop(draw);
        while Arc::strong_count(&owner) > 1 {
            std::thread::yield_now();
        }
        drop(owner);
        sender.send(results.unwrap().token(0)).unwrap();
    };
    client.step_async(OwnedDraw { sequence, logits }, VOCABULARY, StepOptions::default(), done).unwrap();
    drop(client);
    receiver.recv_timeout(Duration::from_secs(30)).unwrap().unwrap();
}

#[test]
fn refusals_are_the_services() {
    let client = connect(0, Transport::Auto);
    let mut wrong = Parameters::new().unwrap();
    wrong.set_number("top_p", 2.0).unwrap();
    let error = client.open(&options("request-1", Some(&wrong))).unwrap_err();
    assert_eq!((error.field.as_str(), error.limit.as_str()), ("open.parameters.top_p", "(0, 1]"));
    let sequence = client.open(&options("request-1", None)).unwrap();
    assert_eq!(client.open(&options("request-1", None)).unwrap_err().code, Code::AlreadyExists);
    let logits = logits_of(1, WIDTH);
    let error = step(&[Row::draw(&sequence, &logits)], VOCABULARY).unwrap_err();
    assert_eq!(error.field, "batch.rows[0].sequence");
    let zero = StepOptions { timeout: Some(Duration::ZERO), ..StepOptions::default() };
    let error = client.step(&[Row::draw(&sequence, &logits)], VOCABULARY, zero).unwrap_err();
    assert_eq!(error.field, "options.timeout");
    drop(client);
    assert_eq!(sequence.fork(&options("b", None), None).unwrap_err().code, Code::FailedPrecondition);
}

#[test]
fn fallback_samples_in_process() {
    let options_of_client =
        ClientOptions { fallback: Fallback::InProcess, ignore_unknown_fields: true, ..ClientOptions::default() };
    let client = Client::connect(&options_of_client).unwrap();
    assert!(client.transport().unwrap().in_process);
    assert_eq!(client.ignored_fields().unwrap(), Vec::<String>::new());
    assert!(!client.worker_session().unwrap().is_empty());
    let sequence = client.open(&options("request-1", None)).unwrap();
    let child = client.open(&options("request-2", None)).unwrap();
    let logits = logits_of(1, WIDTH);
    let rows = [Row::draw(&sequence, &logits), Row::draw(&child, &logits)];
    assert_eq!(client.step(&rows, VOCABULARY, StepOptions::default()).unwrap().len(), 2);
    let nowhere = ClientOptions { default_timeout: Some(Duration::ZERO), ..ClientOptions::default() };
    assert_eq!(Client::connect(&nowhere).unwrap_err().field, "options.default_timeout");
}
