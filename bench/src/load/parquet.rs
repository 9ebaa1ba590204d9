//! Raw records in Parquet: one row a request, the columns named as the fields of [`Record`]. What a server did
//! not tell is null. The file appears whole or not at all.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use arrow_array::types::{Float64Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{
    Array, ArrayAccessor, ArrayRef, ArrowPrimitiveType, BooleanArray, ListArray, PrimitiveArray,
    RecordBatch, StringArray,
};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::mix::Class;
use super::record::Record;

/// Writes all of `records`.
///
/// # Errors
/// When the file can't be written.
pub fn write(path: &Path, records: &[Record]) -> Result<()> {
    let batch = batch(records)?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .build();
    let part = path.with_extension("part");
    let file = File::create(&part).with_context(|| format!("writing {}", part.display()))?;
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties))?;
    writer.write(&batch)?;
    writer.close()?;
    std::fs::rename(&part, path).with_context(|| format!("writing {}", path.display()))
}

/// An option that names a file of records: the metadata beside it, `.json`, would take the place of any other.
///
/// # Errors
/// For one that does not end in `.parquet`.
pub fn records_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().is_some_and(|e| e == "parquet") {
        true => Ok(path),
        false => Err("it does not end in .parquet".into()),
    }
}

/// Reads a file of [`write()`]'s.
///
/// # Errors
/// Names the file when it is no Parquet, a column is missing or of another type, or a row has no value where one must be.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let file = File::open(path).with_context(|| format!("reading {}", path.display()))?;
    let no_records = || format!("{} has no records of `run`'s", path.display());
    rows(file).with_context(no_records)
}

fn rows(file: File) -> Result<Vec<Record>> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file)?.build()?;
    let mut records = Vec::new();
    for batch in reader {
        let batch = batch?;
        let columns = Columns(&batch);
        for row in 0..batch.num_rows() {
            records.push(columns.record(row)?);
        }
    }
    Ok(records)
}

fn batch(records: &[Record]) -> Result<RecordBatch> {
    fn number<T: ArrowPrimitiveType>(
        records: &[Record],
        get: impl Fn(&Record) -> Option<T::Native>,
    ) -> ArrayRef {
        Arc::new(records.iter().map(get).collect::<PrimitiveArray<T>>())
    }
    let u32s = |get: fn(&Record) -> Option<u32>| number::<UInt32Type>(records, get);
    let u64s = |get: fn(&Record) -> Option<u64>| number::<UInt64Type>(records, get);
    let f64s = |get: fn(&Record) -> Option<f64>| number::<Float64Type>(records, get);
    let bools = |get: fn(&Record) -> Option<bool>| -> ArrayRef {
        Arc::new(records.iter().map(get).collect::<BooleanArray>())
    };
    let texts = |get: fn(&Record) -> Option<&str>| -> ArrayRef {
        Arc::new(records.iter().map(get).collect::<StringArray>())
    };
    let gaps = records
        .iter()
        .map(|r| Some(r.frame_gaps_us.iter().copied().map(Some)));
    let gaps: ArrayRef = Arc::new(ListArray::from_iter_primitive::<UInt32Type, _, _>(gaps));
    const MUST: bool = false;
    const MAY: bool = true;
    let columns = [
        ("index", u32s(|r| Some(r.index)), MUST),
        ("class", texts(|r| Some(r.class.label())), MUST),
        ("group", u32s(|r| Some(r.group)), MUST),
        ("turn", u32s(|r| Some(r.turn)), MUST),
        ("max_tokens", u32s(|r| Some(r.max_tokens)), MUST),
        ("slo_ms", u64s(|r| r.slo_ms), MAY),
        ("measured", bools(|r| Some(r.measured)), MUST),
        ("intended_us", u64s(|r| Some(r.intended_us)), MUST),
        ("dispatched_us", u64s(|r| r.dispatched_us), MAY),
        ("sent_us", u64s(|r| r.sent_us), MAY),
        ("first_byte_us", u64s(|r| r.first_byte_us), MAY),
        ("first_frame_us", u64s(|r| r.first_frame_us), MAY),
        ("frame_gaps_us", gaps, MUST),
        ("last_frame_us", u64s(|r| r.last_frame_us), MAY),
        ("finish_us", u64s(|r| Some(r.finish_us)), MUST),
        ("status", number::<UInt16Type>(records, |r| r.status), MAY),
        ("error", texts(|r| r.error.as_deref()), MAY),
        ("code", texts(|r| r.code.as_deref()), MAY),
        ("retry_after_s", u32s(|r| r.retry_after_s), MAY),
        ("censored", bools(|r| Some(r.censored)), MUST),
        ("finish_reason", texts(|r| r.finish_reason.as_deref()), MAY),
        ("prompt_tokens", u32s(|r| r.prompt_tokens), MAY),
        ("cached_tokens", u32s(|r| r.cached_tokens), MAY),
        ("completion_tokens", u32s(|r| r.completion_tokens), MAY),
        ("bound_ms", f64s(|r| r.bound_ms), MAY),
        ("verdict", texts(|r| r.verdict.as_deref()), MAY),
        ("level", f64s(|r| r.level), MAY),
        ("kept", bools(|r| r.kept), MAY),
        ("queue_ms", f64s(|r| r.queue_ms), MAY),
        ("prefill_ms", f64s(|r| r.prefill_ms), MAY),
        ("first_decode_ms", f64s(|r| r.first_decode_ms), MAY),
        ("reused", bools(|r| Some(r.reused)), MUST),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

/// The columns of a batch by name.
struct Columns<'a>(&'a RecordBatch);

impl<'a> Columns<'a> {
    fn column<A: Array + 'static>(&self, name: &str) -> Result<&'a A> {
        let column = self.0.column_by_name(name);
        let column = column.with_context(|| format!("no column {name}"))?;
        let column = column.as_any().downcast_ref();
        column.with_context(|| format!("column {name} is of another type"))
    }

    fn record(&self, row: usize) -> Result<Record> {
        fn at<A: ArrayAccessor>(column: A, row: usize) -> Option<A::Item> {
            (!column.is_null(row)).then(|| column.value(row))
        }
        let number32 = |name| {
            Ok::<_, anyhow::Error>(at(self.column::<PrimitiveArray<UInt32Type>>(name)?, row))
        };
        let number64 = |name| {
            Ok::<_, anyhow::Error>(at(self.column::<PrimitiveArray<UInt64Type>>(name)?, row))
        };
        let float = |name| {
            Ok::<_, anyhow::Error>(at(self.column::<PrimitiveArray<Float64Type>>(name)?, row))
        };
        let flag = |name| Ok::<_, anyhow::Error>(at(self.column::<BooleanArray>(name)?, row));
        let text = |name| {
            let text = at(self.column::<StringArray>(name)?, row);
            Ok::<_, anyhow::Error>(text.map(str::to_owned))
        };
        let gaps = self.column::<ListArray>("frame_gaps_us")?.value(row);
        let gaps = gaps.as_any().downcast_ref::<PrimitiveArray<UInt32Type>>();
        let class = text("class")?.context("a row without a class")?;
        Ok(Record {
            index: number32("index")?.unwrap_or_default(),
            class: Class::from_label(&class).with_context(|| format!("no class {class}"))?,
            group: number32("group")?.unwrap_or_default(),
            turn: number32("turn")?.unwrap_or_default(),
            max_tokens: number32("max_tokens")?.unwrap_or_default(),
            slo_ms: number64("slo_ms")?,
            measured: flag("measured")?.unwrap_or_default(),
            intended_us: number64("intended_us")?.unwrap_or_default(),
            dispatched_us: number64("dispatched_us")?,
            sent_us: number64("sent_us")?,
            first_byte_us: number64("first_byte_us")?,
            first_frame_us: number64("first_frame_us")?,
            frame_gaps_us: gaps.context("gaps of another type")?.values().to_vec(),
            last_frame_us: number64("last_frame_us")?,
            finish_us: number64("finish_us")?.unwrap_or_default(),
            status: at(self.column::<PrimitiveArray<UInt16Type>>("status")?, row),
            error: text("error")?,
            code: text("code")?,
            retry_after_s: number32("retry_after_s")?,
            censored: flag("censored")?.unwrap_or_default(),
            finish_reason: text("finish_reason")?,
            prompt_tokens: number32("prompt_tokens")?,
            cached_tokens: number32("cached_tokens")?,
            completion_tokens: number32("completion_tokens")?,
            bound_ms: float("bound_ms")?,
            verdict: text("verdict")?,
            level: float("level")?,
            kept: flag("kept")?,
            queue_ms: float("queue_ms")?,
            prefill_ms: float("prefill_ms")?,
            first_decode_ms: float("first_decode_ms")?,
            reused: flag("reused")?.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_with_a_timeout_beside_a_status() {
        // A column that mixed statuses with the word "timeout" once lost a whole run.
        let full = Record {
            index: 3,
            class: Class::Agent,
            group: 9,
            turn: 2,
            max_tokens: 64,
            slo_ms: Some(4000),
            measured: true,
            intended_us: 10,
            dispatched_us: Some(11),
            sent_us: Some(12),
            first_byte_us: Some(13),
            first_frame_us: Some(14),
            frame_gaps_us: vec![1, 2, 3],
            last_frame_us: Some(20),
            finish_us: 21,
            status: Some(200),
            error: None,
            code: None,
            retry_after_s: Some(7),
            censored: false,
            finish_reason: Some("stop".into()),
            prompt_tokens: Some(541),
            cached_tokens: Some(480),
            completion_tokens: Some(4),
            bound_ms: Some(900.5),
            verdict: Some("admitted".into()),
            level: Some(0.95),
            kept: Some(true),
            queue_ms: Some(1.0),
            prefill_ms: Some(2.0),
            first_decode_ms: Some(3.0),
            reused: true,
        };
        let late = Record {
            error: Some("timeout".into()),
            censored: true,
            ..Record::default()
        };
        let refused = Record {
            status: Some(503),
            code: Some("queue_full".into()),
            ..Record::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cell.parquet");
        let records = vec![full, late, refused];
        write(&path, &records).unwrap();
        assert_eq!(read(&path).unwrap(), records);
        assert!(!path.with_extension("part").exists());
        write(&path, &[]).unwrap();
        assert_eq!(read(&path).unwrap(), []);
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.parquet");
        assert!(read(&path).is_err());
        std::fs::write(&path, "no").unwrap();
        assert!(read(&path).is_err());
        assert!(write(Path::new("/nowhere/x.parquet"), &[]).is_err());
    }
}
