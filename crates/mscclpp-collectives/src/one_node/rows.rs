//! How rows are summed up, and the parameters of their kernel.

use crate::{
    Error, Protocol, Result,
    choice::{Possible, Query, Selection, Shape, blocks_with_room},
    handle::{CollectiveCall, CollectiveRows, MAX_RANKS, RowsProtocol, Segment, VECTORS},
    plan::rows_signature,
    rank::RankState,
    rows::{Rows, VECTOR},
};

use super::engine::OneNode;

impl OneNode {
    pub(super) fn selection_of_rows(&self, rank: &RankState, rows: &Rows) -> Result<Option<Selection>> {
        let ranks = rank.n_ranks();
        if rows.rows == 0 {
            return Ok(None);
        }
        let (bytes, result_bytes) = (rows.row_bytes(), u64::from(rows.outputs().1));
        if rows.rows >= 1 << 31 {
            return Err(Error::InvalidArgument(format!("{} rows; there may be fewer than 2^31", rows.rows)));
        }
        let part = rows.rows.div_ceil(ranks as u64);
        let vectors = bytes / VECTOR;
        // Every rank sums up some row: see E2 of the header.
        let two_steps = ranks > 1 && rows.rows >= ranks as u64;
        let query = Query {
            shape: Shape::Rows(rows.rows),
            reduces: true,
            bytes: bytes.saturating_mul(rows.rows),
            ranks,
            possible: Possible {
                ll16: self.layout.fits_rows(vectors, rows.rows, 0, false),
                ll128: self.ll128 && self.layout.fits_rows(vectors, rows.rows, 0, true),
                ll16_in_two_steps: two_steps && self.layout.fits_rows(vectors, part, result_bytes, false),
                ll128_in_two_steps: two_steps
                    && self.ll128
                    && self.layout.fits_rows(vectors, part, result_bytes, true),
                simple_in_two_steps: two_steps,
                ..Possible::default()
            },
            max_blocks: self.max_blocks,
            max_threads: self.max_threads,
            overlap: self.overlap,
            devices: self.devices,
        };
        let mut selection = rank.options.selector.choose(&query).mended(&query);
        let threads = vectors.div_ceil(VECTORS).next_multiple_of(32);
        selection.threads = selection.threads.max(threads as u32);
        selection.blocks = selection.blocks.min(blocks_with_room(self.max_threads, selection.threads).max(1));
        if selection.protocol == Protocol::Simple {
            let chunk = chunk(bytes, result_bytes, selection);
            let most = self.layout.blocks_of_chunks(chunk, selection.two_steps);
            if most == 0 {
                return Err(Error::InvalidArgument(format!(
                    "rows of {bytes} bytes, with results of {result_bytes}, do not fit into {} bytes of scratch; give \
                     CollectivesBuilder::scratch() more",
                    rank.scratch_bytes
                )));
            }
            selection.blocks = selection.blocks.min(u32::try_from(most).unwrap_or(u32::MAX));
        }
        Ok(Some(selection))
    }

    pub(super) fn rows_call(&self, rank: &RankState, rows: &Rows, selection: Selection) -> CollectiveRows {
        let (outputs, result_bytes) = rows.outputs();
        let ranks = rank.n_ranks() as u64;
        CollectiveRows {
            call: CollectiveCall {
                segments: [Segment::NONE; MAX_RANKS],
                most_bytes: 0,
                chunk: chunk(rows.row_bytes(), result_bytes.into(), selection),
                data_type: rows.data_type as u32,
                op: 0,
                scale: 0,
                scaled: 0,
                one_way: 0,
                checked: rank.options.checks().into(),
                in_place: 0,
                signature: rows_signature(rows.rows, rows.columns, rows.data_type),
            },
            send: rows.send,
            rows: rows.rows,
            most: if selection.two_steps { rows.rows.div_ceil(ranks) } else { rows.rows },
            outputs,
            vectors: (rows.row_bytes() / VECTOR) as u32,
            result_bytes,
            two_steps: selection.two_steps.into(),
            protocol: match selection.protocol {
                Protocol::Ll16 => RowsProtocol::Ll16,
                Protocol::Ll128 => RowsProtocol::Ll128,
                _ => RowsProtocol::Simple,
            } as u32,
        }
    }
}

/// The size of a chunk: that of a row, or of what ranks send of its results.
fn chunk(row: u64, results: u64, selection: Selection) -> u64 {
    if selection.two_steps { row.max(results) } else { row }
}
