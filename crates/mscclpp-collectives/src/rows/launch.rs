//! How rows are summed up, and what their kernel is told.

use super::{Rows, VECTOR};
use crate::{
    Error, Result, Way,
    calls::{Inner, Mapped, Reach},
    handle::{CollectiveCall, CollectiveRows, MAX_RANKS, RowsWay, Segment, VECTORS},
    select::{Choice, Possible, Question, Shape, blocks_with_room},
    signature::rows_signature,
};

impl Inner {
    pub(super) fn mapped(&self) -> Result<&Mapped> {
        match &self.reach {
            Reach::Memory(mapped) => Ok(mapped),
            Reach::Ports(_) | Reach::Nodes(_) => Err(Error::InvalidArgument(
                "all_reduce_rows by port channels; it needs devices that reach each other's memory. Call all_reduce, and \
                 then a kernel that goes on"
                    .into(),
            )),
        }
    }

    pub(super) fn choose_rows(&self, rows: &Rows) -> Result<Option<Choice>> {
        let mapped = self.mapped()?;
        let ranks = self.group.ranks.len();
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
        let question = Question {
            shape: Shape::Rows(rows.rows),
            reduces: true,
            bytes: bytes.saturating_mul(rows.rows),
            ranks,
            possible: Possible {
                packets: mapped.layout.fits_rows(vectors, rows.rows, 0, false),
                lines: mapped.lines && mapped.layout.fits_rows(vectors, rows.rows, 0, true),
                packets_in_two_steps: two_steps
                    && mapped.layout.fits_rows(vectors, part, result_bytes, false),
                lines_in_two_steps: two_steps
                    && mapped.lines
                    && mapped.layout.fits_rows(vectors, part, result_bytes, true),
                pieces_in_two_steps: two_steps,
                direct: false,
                bulk: false,
                engines: false,
                in_place: false,
            },
            max_blocks: mapped.max_blocks,
            max_threads: mapped.max_threads,
            devices: mapped.devices,
        };
        let mut choice = self.selector.choose(&question).mended(&question);
        let threads = vectors.div_ceil(VECTORS).next_multiple_of(32);
        choice.threads = choice.threads.max(threads as u32);
        choice.blocks = choice.blocks.min(blocks_with_room(mapped.max_threads, choice.threads).max(1));
        if choice.way == Way::Pieces {
            let piece = piece(bytes, result_bytes, choice);
            let most = mapped.layout.blocks_of_pieces(piece, choice.two_steps);
            if most == 0 {
                return Err(Error::InvalidArgument(format!(
                    "rows of {bytes} bytes, with results of {result_bytes}, do not fit into {} bytes of scratch; give \
                     CollectivesBuilder::scratch() more",
                    self.budget
                )));
            }
            choice.blocks = choice.blocks.min(u32::try_from(most).unwrap_or(u32::MAX));
        }
        Ok(Some(choice))
    }

    pub(super) fn rows_call(&self, rows: &Rows, choice: Choice) -> CollectiveRows {
        let (outputs, result_bytes) = rows.outputs();
        let ranks = self.group.ranks.len() as u64;
        CollectiveRows {
            call: CollectiveCall {
                segments: [Segment::NONE; MAX_RANKS],
                most_bytes: 0,
                piece: piece(rows.row_bytes(), result_bytes.into(), choice),
                data_type: rows.data_type as u32,
                op: 0,
                scale: 0,
                scaled: 0,
                one_way: 0,
                checked: self.check_calls.into(),
                in_place: 0,
                signature: rows_signature(rows.rows, rows.columns, rows.data_type),
            },
            send: rows.send,
            rows: rows.rows,
            most: if choice.two_steps { rows.rows.div_ceil(ranks) } else { rows.rows },
            outputs,
            vectors: (rows.row_bytes() / VECTOR) as u32,
            result_bytes,
            two_steps: choice.two_steps.into(),
            way: match choice.way {
                Way::Packets => RowsWay::Packets,
                Way::Lines => RowsWay::Lines,
                _ => RowsWay::Pieces,
            } as u32,
        }
    }
}

/// What a piece holds: a row, or what ranks send of its results.
fn piece(row: u64, results: u64, choice: Choice) -> u64 {
    if choice.two_steps { row.max(results) } else { row }
}
