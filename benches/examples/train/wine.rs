//! The data: physico-chemical measurements of red vinho verde wines, and the points that tasters gave.
//!
//! P. Cortez, A. Cerdeira, F. Almeida, T. Matos, J. Reis: Modeling wine preferences by data mining
//! from physicochemical properties, Decision Support Systems 47 (2009). UCI Machine Learning
//! Repository, CC BY 4.0. The package linfa-datasets (MIT or Apache-2.0) contains it, so a run downloads nothing. This
//! set is the largest of the package's sets with classes.

use std::collections::HashSet;

use training::Samples;

/// The number of points, of 10, from which a wine counts as good. This limit gives the most even split: about
/// 53% of the wines are good.
const GOOD: usize = 6;

/// Returns all wines, each once. Good wines have the label 1.
///
/// Of the file's 1599 lines, 240 repeat an earlier line, and are left out. A line that is in the training set
/// and in the test set would only test what the network has memorized.
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
