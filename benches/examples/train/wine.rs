//! The data: physico-chemical measurements of red vinho verde wines, and the points that tasters gave.
//!
//! P. Cortez, A. Cerdeira, F. Almeida, T. Matos, J. Reis: Modeling wine preferences by data mining
//! from physicochemical properties, Decision Support Systems 47 (2009). UCI Machine Learning
//! Repository, CC BY 4.0. The package linfa-datasets (MIT or Apache-2.0) contains it, so a run downloads nothing. It is the
//! largest of that package's sets with classes.

use std::collections::HashSet;

use training::Samples;

/// A wine with this many points of 10 is good. This split is the nearest to the middle: about 53% of the wines are good.
const GOOD: usize = 6;

/// Returns all wines, each once: label 1 for the good ones.
///
/// 240 of the file's 1599 lines repeat an earlier line. Only the first of each is kept: a copy on both sides of the split
/// would test what was learnt by heart.
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
