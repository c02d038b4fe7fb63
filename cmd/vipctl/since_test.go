package main

import (
	"testing"
	"time"
)

// TestSince parses durations, times of day and days. A time of day in the future must mean
// yesterday.
func TestSince(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 20, 30, 0, time.Local)
	for text, want := range map[string]string{
		"10m": "Nov  1 00:10:30 in the last 10m", "0s": "Nov  1 00:20:30 in the last 0s", "00:20": "Nov  1 00:20:00 since 00:20",
		"23:15": "Oct 31 23:15:00 since 23:15", "23:15:07": "Oct 31 23:15:07 since 23:15:07", "2026-10-30": "Oct 30 00:00:00 since 2026-10-30",
		"2026-10-30T23:15": "Oct 30 23:15:00 since 2026-10-30T23:15", "2026-10-30 23:15:07": "Oct 30 23:15:07 since 2026-10-30 23:15:07",
		"-1s": "--since can't be below zero", "soon": `--since "soon" is not a time, such as 10m, 23:15 or 2026-11-21T23:15`,
		"25:00": `--since "25:00" is not a time, such as 10m, 23:15 or 2026-11-21T23:15`,
	} {
		from, words, err := sinceTime(text, now)
		got := from.Format("Jan _2 15:04:05") + " " + words
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: time = %s, want %s", text, got, want)
		}
	}
}
