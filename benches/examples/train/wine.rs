//! The data: physico-chemical measurements of red vinho verde wines, and what tasters thought.
//!
//! P. Cortez, A. Cerdeira, F. Almeida, T. Matos, J. Reis: Modeling wine preferences by data mining
//! from physicochemical properties, Decision Support Systems 47 (2009). UCI Machine Learning
//! Repository, CC BY 4.0; it comes inside the package linfa-datasets (MIT or Apache-2.0), so that a
//! run downloads nothing. The largest of that package's sets with classes.

use std::collections::HashSet;

use benches::train::Samples;

/// A wine with so many points, of 10, is a good one. The split nearest to the middle: about 53% are.
const GOOD: usize = 6;

/// All wines, each once: label 1 for the good ones.
///
/// 240 of the file's 1599 lines repeat an earlier one. With copies on both sides of a split, the test
/// would partly ask for what was learnt by heart, so only the first of each is kept.
pub fn wines() -> Samples {
    let dataset = linfa_datasets::winequality();
    let features = dataset.records().ncols();
    let (mut seen, mut inputs, mut labels) = (HashSet::new(), Vec::new(), Vec::new());
    for (row, &points) in dataset.records().outer_iter().zip(dataset.targets()) {
        let row: Vec<f32> = row.iter().map(|&x| x as f32).collect();
        if seen.insert(row.iter().map(|x| x.to_bits()).collect::<Vec<_>>()) {
            inputs.extend(row);
            labels.push(usize::from(points >= GOOD));
        }
    }
    Samples::new(features, inputs, labels)
}
