//! Of the timeline, one rule at a time.

use super::*;

fn with(streams: &[u64]) -> Timeline<&'static str> {
    let mut line = Timeline::default();
    for &stream in streams {
        line.open(stream, 0, 0, false);
    }
    line
}

#[test]
fn work_of_a_stream_is_taken_in_order_and_one_at_a_time() {
    let mut line = with(&[1]);
    line.submit(1, "a");
    line.submit(1, "b");
    assert_eq!(line.take(0), Some((1, "a")));
    assert_eq!(line.take(0), None);
    line.finish(1);
    assert_eq!(line.take(0), Some((1, "b")));
}

#[test]
fn streams_overlap_and_the_lower_number_goes_first() {
    let mut line = with(&[1]);
    line.open(2, 0, -3, false);
    line.submit(1, "normal");
    line.submit(2, "urgent");
    assert_eq!(line.take(0), Some((2, "urgent")));
    assert_eq!(line.take(0), Some((1, "normal")));
}

#[test]
fn a_stream_waits_for_the_point_of_another_one_across_devices() {
    let mut line = with(&[1]);
    line.open(2, 1, 0, false);
    line.submit(1, "first");
    let point = line.point(1).unwrap();
    line.wait(2, &point);
    line.submit(2, "second");
    assert_eq!(line.take(1), None);
    assert!(line.take(0).is_some());
    line.finish(1);
    assert_eq!(line.take(1), Some((2, "second")));
    assert!(line.is_before(2, 1, point.position));
}

#[test]
fn a_mark_is_reached_when_what_is_before_it_is_done() {
    let mut line = with(&[1]);
    line.submit(1, "work");
    let point = line.mark(1, 77).unwrap();
    assert!(!line.has_passed(&point));
    line.take(0);
    assert_eq!(line.fetch_reached(), [0; 0]);
    line.finish(1);
    assert_eq!(line.fetch_reached(), [77]);
    assert!(line.has_passed(&point));
}

#[test]
fn a_stalled_stream_does_nothing_until_it_is_released() {
    let mut line = with(&[1]);
    line.stall(1, true);
    line.submit(1, "work");
    line.mark(1, 5);
    assert_eq!(line.take(0), None);
    line.stall(1, false);
    assert_eq!(line.take(0), Some((1, "work")));
}

#[test]
fn an_aborted_stream_gives_its_work_back_and_holds_nobody() {
    let mut line = with(&[1, 2]);
    line.submit(1, "running");
    assert!(line.take(0).is_some());
    line.submit(1, "never");
    line.mark(1, 9);
    line.join(2, 1);
    line.submit(2, "waiter");
    assert_eq!(line.take(0), None);
    assert_eq!(line.abort(1), ["never"]);
    assert_eq!(line.take(0), Some((2, "waiter")));
    line.finish(1);
    assert!(line.is_idle(1));
    assert_eq!(line.fetch_reached(), [0; 0]);
}

#[test]
fn a_closed_stream_goes_when_its_work_is_done() {
    let mut line = with(&[1]);
    line.submit(1, "work");
    line.close(1);
    assert_eq!(line.streams(), 1);
    assert!(line.take(0).is_some());
    line.finish(1);
    assert_eq!(line.streams(), 0);
}

#[test]
fn what_the_host_saw_pass_is_ordered_before_what_comes_later() {
    let mut line = with(&[1, 2]);
    let position = line.submit(1, "work");
    let point = line.point(1).unwrap();
    line.take(0);
    line.finish(1);
    assert!(!line.is_before(2, 1, position), "done, but nobody has looked");
    line.see(&point);
    assert!(line.is_before(2, 1, position));
}

#[test]
fn a_join_of_work_that_is_done_orders_without_a_step() {
    let mut line = with(&[1, 2]);
    let position = line.submit(1, "work");
    line.take(0);
    line.finish(1);
    line.join(2, 1);
    assert!(line.is_idle(2));
    assert!(line.is_before(2, 1, position));
}

#[test]
fn clocks_forget_streams_that_are_gone_and_were_seen_to_pass() {
    let mut line = with(&[1]);
    for number in 2..100 {
        line.open(number, 0, 0, false);
        line.submit(number, "work");
        let point = line.point(number).unwrap();
        line.wait(1, &point);
        line.take(0);
        line.finish(number);
        line.see(&point);
        line.close(number);
    }
    let last = line.point(1).unwrap();
    line.see(&last);
    line.submit(1, "last");
    assert!(line.unseen.is_empty());
    assert!(line.streams[&1].clock.0.len() <= 1, "{:?}", line.streams[&1].clock);
}
