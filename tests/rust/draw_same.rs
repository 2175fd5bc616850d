//! Draws a text and prints each token with the bits of its log probability: in process, or at the target that is named.
use sortition::{step, Client, ClientOptions, Result, Row, Sequence, StepOptions};
use sortition_tests::{logits_of, options, parameters, VOCABULARY};

fn main() -> Result<()> {
    let target = std::env::args().nth(1);
    let parameters = parameters()?;
    let options = options("rust", Some(&parameters));
    let client = match target {
        Some(target) => Some(Client::connect(&ClientOptions { targets: vec![target], ..ClientOptions::default() })?),
        None => None,
    };
    let sequence = match &client {
        Some(client) => client.open(&options)?,
        None => Sequence::open(&options)?,
    };
    for seed in 0..40 {
        let logits = logits_of(seed, VOCABULARY as usize);
        let rows = [Row::draw(&sequence, &logits)];
        let results = match &client {
            Some(client) => client.step(&rows, VOCABULARY, StepOptions::default())?,
            None => step(&rows, VOCABULARY)?,
        };
        let row = results.row(0)?;
        for position in row.positions() {
            let bits = position.processed().map_or(0, |logprobs| logprobs.logprob.to_bits());
            println!("{} {:08x}", position.token(), bits);
        }
    }
    Ok(())
}
