//! The crate in process: rows of every kind, refusals, threads.
use sortition::*;
use sortition_tests::{logits_of, options, parameters, VOCABULARY};
use std::sync::Arc;

const WIDTH: usize = VOCABULARY as usize;

fn open() -> Sequence {
    Sequence::open(&options("a", Some(&parameters().unwrap()))).unwrap()
}

fn draw(sequence: &Sequence, seed: u32) -> u32 {
    let logits = logits_of(seed, WIDTH);
    step(&[Row::draw(sequence, &logits)], VOCABULARY).unwrap().token(0).unwrap()
}

/// Returns the error of a call that must fail.
fn refusal<T>(result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("not refused"),
        Err(error) => error,
    }
}

/// Compiles for types that threads may share and hand over.
fn shared<T: Send + Sync>() {}

#[test]
fn types_are_send_and_sync() {
    shared::<Parameters>();
    shared::<Sequence>();
    shared::<Results>();
    shared::<RowResult<'_>>();
    shared::<Position<'_>>();
    shared::<Row<'_>>();
    shared::<Client>();
    shared::<Memory>();
    shared::<Error>();
}

#[test]
fn library_has_versions() {
    assert!(!version().0.is_empty());
    assert!(version().1 >= 1);
}

#[test]
fn draw_returns_what_was_asked_for() {
    let sequence = open();
    let logits = logits_of(1, WIDTH);
    let results = step(&[Row::draw(&sequence, &logits)], VOCABULARY).unwrap();
    let row = results.row(0).unwrap();
    assert_eq!((results.len(), row.kind(), row.positions().len()), (1, Kind::Draw, 1));
    let position = row.positions().next().unwrap();
    let logprobs = position.processed().unwrap();
    assert!(logprobs.logprob < 0.0 && logprobs.rank >= 1 && logprobs.top_tokens.len() == 3);
    assert!(logprobs.top_logprobs[0] >= logprobs.top_logprobs[2]);
    assert!(position.raw().is_none() && position.entropy().is_none() && position.kept_tokens().is_empty());
    assert_eq!(sequence.tokens().unwrap(), [1, 2, 3, 2, position.token()]);
    let info = sequence.info().unwrap();
    assert_eq!((info.seed, info.position, info.stateful), (42, 5, true));
}

#[test]
fn tempered_logprobs_and_kept_mass_are_answered() {
    let mut parameters = Parameters::new().unwrap();
    parameters.set_count("top_k", 3).unwrap().set_count("tempered_logprobs.top", 5).unwrap();
    parameters.set_switch("kept_log_mass", true).unwrap();
    let sequence = Sequence::open(&options("a", Some(&parameters))).unwrap();
    let logits = logits_of(1, WIDTH);
    let results = step(&[Row::draw(&sequence, &logits)], VOCABULARY).unwrap();
    let position = results.row(0).unwrap().positions().next().unwrap();
    let logprobs = position.tempered().unwrap();
    assert!((1..=3).contains(&logprobs.rank) && logprobs.top_tokens.len() == 5);
    let mass: f32 = logprobs.top_logprobs[..3].iter().map(|logprob| logprob.exp()).sum();
    assert!((position.kept_log_mass().unwrap() - mass.ln()).abs() < 1e-5);
    assert!(position.processed().is_none());
}

#[test]
fn drafts_and_scores_are_answered() {
    let (plain, drafted) = (open(), open());
    let tokens: Vec<u32> = (10..13).map(|seed| draw(&plain, seed)).collect();
    let logits: Vec<f32> = (10..14).flat_map(|seed| logits_of(seed, WIDTH)).collect();
    let mut row = Row { task: Task::Verify(Drafts::coupled(&tokens)), ..Row::draw(&drafted, &logits) };
    let results = step(&[row], VOCABULARY).unwrap();
    assert_eq!(results.row(0).unwrap().accepted(), 3);
    let drawn: Vec<u32> = results.row(0).unwrap().positions().map(|position| position.token()).collect();
    assert_eq!(drawn[..3], tokens);
    assert_eq!(drawn[3], draw(&plain, 13));

    row.logits = Logits::F32(&logits[..3 * WIDTH]);
    row.task = Task::Score(&tokens);
    let results = step(&[row], VOCABULARY).unwrap();
    assert_eq!((results.row(0).unwrap().kind(), results.row(0).unwrap().positions().len()), (Kind::Score, 3));
    assert_eq!(drafted.info().unwrap().position, 8);

    let sparse = [SparseProbabilities { tokens: &[5], probabilities: &[1.0] }; 3];
    let mut dense = vec![0.0; 3 * WIDTH];
    for (draft, token) in tokens.iter().enumerate() {
        dense[draft * WIDTH + *token as usize] = 1.0;
    }
    for probabilities in [DraftProbabilities::Sparse(&sparse), DraftProbabilities::Dense(Logits::F32(&dense))] {
        let tokens = if let DraftProbabilities::Sparse(_) = probabilities { vec![5; 3] } else { tokens.clone() };
        let mode = VerifyMode::Rejection;
        let drafts = Drafts { mode, probabilities, return_probabilities: true, ..Drafts::coupled(&tokens) };
        row = Row { task: Task::Verify(drafts), ..Row::draw(&drafted, &logits) };
        let results = step(&[row], VOCABULARY).unwrap();
        let answer = results.row(0).unwrap();
        assert_eq!(answer.positions().len(), answer.accepted() as usize + 1);
        assert_eq!(answer.positions().next().unwrap().probabilities().len(), WIDTH);
    }
}

#[test]
fn tree_takes_probabilities() {
    let sequence = open();
    let logits = logits_of(30, 4 * WIDTH);
    let lists = [SparseProbabilities { tokens: &[4, 5], probabilities: &[0.5, 0.5] }; 2];
    let mut drafts = Drafts {
        parents: Some(&[-1, -1, 1]),
        mode: VerifyMode::Rejection,
        probabilities: DraftProbabilities::Sparse(&lists), // of the root, and after draft 1
        ..Drafts::coupled(&[4, 5, 4])
    };
    let row = Row::draw(&sequence, &logits);
    let results = step(&[Row { task: Task::Verify(drafts), ..row }], VOCABULARY).unwrap();
    assert_eq!(refusal(results.row(0)).reason, "MISSING_FIELD");
    drafts.sampling = Some(DraftSampling::WithoutReplacement);
    let results = step(&[Row { task: Task::Verify(drafts), ..row }], VOCABULARY).unwrap();
    assert_eq!(results.row(0).unwrap().path().len(), results.row(0).unwrap().accepted() as usize);
}

#[test]
fn bad_row_fails_alone() {
    let sequences = [open(), open()];
    let (good, mut bad) = (logits_of(1, WIDTH), logits_of(2, WIDTH));
    bad[700] = f32::NAN;
    let rows = [Row::draw(&sequences[0], &bad), Row::draw(&sequences[1], &good)];
    let results = step(&rows, VOCABULARY).unwrap();
    assert_eq!(refusal(results.row(0)).reason, "LOGIT_NAN");
    assert!(results.token(1).is_ok());
    assert_eq!(results.iter().filter(|row| row.is_ok()).count(), 1);
}

#[test]
fn wrong_sizes_are_refused_by_name() {
    let sequence = open();
    let logits = logits_of(1, 2 * WIDTH);
    let row = Row::draw(&sequence, &logits[..WIDTH]);
    let fields = |row: Row<'_>| {
        let error = refusal(step(&[row], VOCABULARY));
        assert_eq!(error.reason, "SIZE_MISMATCH", "{}", error);
        error.field
    };
    assert_eq!(fields(Row { logits: Logits::F32(&logits), ..row }), "rows[0].logits");
    assert_eq!(fields(Row { allowed: Some(&[1; 31]), ..row }), "rows[0].allowed");
    assert_eq!(fields(Row { task: Task::Verify(Drafts::coupled(&[1])), ..row }), "rows[0].logits");
    let parents: &[i32] = &[-1, -1];
    let drafts = Drafts { parents: Some(parents), ..Drafts::coupled(&[1]) };
    assert_eq!(fields(Row { task: Task::Verify(drafts), ..row }), "rows[0].task.parents");
    let halves = [0u16; WIDTH];
    let error = refusal(step(&[row, Row { logits: Logits::F16(&halves), ..row }], VOCABULARY));
    assert_eq!(error.field, "rows[1].logits");
    assert_eq!(refusal(step(&[], VOCABULARY)).field, "batch.rows");
    let error = refusal(step(&[Row { task: Task::Score(&[]), ..row }], VOCABULARY));
    assert_eq!(error.field, "rows[0].task");
    let results = step(&[Row { logits: Logits::F32(&logits[..999]), ..row }], 999).unwrap();
    assert_eq!(refusal(results.row(0)).reason, "VOCABULARY_MISMATCH");
}

#[test]
fn ends_of_texts_are_reported() {
    let mut parameters = Parameters::new().unwrap();
    parameters.set_number("temperature", 0.0).unwrap().set_count("repetition_stop.repeats", 2).unwrap();
    parameters.set_count("repetition_stop.min_length", 0).unwrap().add_tokens("banned_phrases", &[7, 9]).unwrap();
    let sequence = Sequence::open(&options("a", Some(&parameters))).unwrap();
    let mut logits = logits_of(1, WIDTH);
    logits[7] = 90.0;
    logits[9] = 80.0;
    for repeating in [false, true] {
        let results = step(&[Row::draw(&sequence, &logits)], VOCABULARY).unwrap();
        assert_eq!((results.token(0).unwrap(), results.row(0).unwrap().is_repeating()), (7, repeating));
    }
    let position = sequence.info().unwrap().position;
    logits[9] = 100.0;
    let results = step(&[Row::draw(&sequence, &logits)], VOCABULARY).unwrap();
    assert_eq!(results.row(0).unwrap().rewind(), Some((position - 1, &[7u32, 9][..])));
    assert_eq!(sequence.info().unwrap().position, position - 1);
    let row = Row { banned: &[9], ..Row::draw(&sequence, &logits) };
    let results = step(&[row], VOCABULARY).unwrap();
    assert!(![7, 9].contains(&results.token(0).unwrap()));
    assert_eq!(results.row(0).unwrap().rewind(), None);
}

#[test]
fn parameters_are_refused_by_name() {
    let mut parameters = Parameters::new().unwrap();
    assert_eq!(refusal(parameters.set_number("temprature", 1.0)).reason, "UNKNOWN_FIELD");
    assert!(refusal(parameters.set_count("top_p", 1)).message.contains("set_double"));
    assert_eq!(refusal(parameters.set_number("a\0b", 1.0)).field, "name");
    assert_eq!(refusal(parameters.set_biases("logit_bias", &[1], &[])).field, "logit_bias");
    parameters.set_text("chain.preset", "PRESET_HF").unwrap().set_tokens("stop_token_ids", &[5]).unwrap();
    parameters.add_tokens("bad_words", &[1, 2]).unwrap().set_switch("entropy", true).unwrap();
    parameters.set_biases("logit_bias", &[7], &[900.0]).unwrap();
    let copy = parameters.try_clone().unwrap();
    parameters.set_number("temperature", 200.0).unwrap();
    let error = refusal(Sequence::open(&options("a", Some(&parameters))));
    assert_eq!((error.code, error.field.as_str()), (Code::OutOfRange, "open.parameters.temperature"));
    assert!(error.to_string().contains("OUT_OF_RANGE open.parameters.temperature (0 or 0.01..100)"));
    parameters.clear("temperature").unwrap();
    for parameters in [&parameters, &copy] {
        assert_eq!(draw(&Sequence::open(&options("a", Some(parameters))).unwrap(), 1), 7);
    }
}

#[test]
fn rewrites_and_forks_continue_the_text() {
    let sequence = open();
    sequence.append(&[3, 4]).unwrap();
    sequence.replace_last(7).unwrap();
    sequence.truncate(5).unwrap();
    assert_eq!(sequence.tokens().unwrap(), [1, 2, 3, 2, 3]);
    let copy = sequence.try_clone().unwrap();
    assert_eq!(draw(&sequence, 5), draw(&copy, 5));
    let child = sequence.fork(&SequenceOptions { prompt: &[], ..options("b", None) }, Some(3)).unwrap();
    assert_eq!(child.info().unwrap().position, 3);
    assert_eq!(refusal(sequence.truncate(99)).code, Code::OutOfRange);
}

#[test]
fn threads_share_a_sequence() {
    let sequence = Arc::new(open());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let sequence = Arc::clone(&sequence);
            std::thread::spawn(move || (0..25).for_each(|seed| assert!(draw(&sequence, seed) < VOCABULARY)))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(sequence.info().unwrap().position, 104);
}
