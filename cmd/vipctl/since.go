package main

import (
	"time"
)

// sinceTime reads a time that lies back: a span such as 10m, a time of day, the latest that is not ahead, or a day and a
// time, all local. Words say it in a sentence: "in the last 10m", "since 23:15".
func sinceTime(text string, now time.Time) (from time.Time, words string, err error) {
	if d, err := time.ParseDuration(text); err == nil {
		if d < 0 {
			return from, "", wrongUse("--since can't be below zero")
		}
		return now.Add(-d), "in the last " + text, nil
	}
	now = now.Local()
	for _, layout := range []string{"15:04", "15:04:05"} {
		at, err := time.ParseInLocation(layout, text, time.Local)
		if err != nil {
			continue
		}
		from = time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), at.Second(), 0, time.Local)
		if from.After(now) {
			from = time.Date(now.Year(), now.Month(), now.Day()-1, at.Hour(), at.Minute(), at.Second(), 0, time.Local)
		}
		return from, "since " + text, nil
	}
	for _, layout := range []string{"2006-01-02", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02 15:04:05", time.RFC3339} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return at, "since " + text, nil
		}
	}
	return from, "", wrongUse("--since %q is not a time: 10m, 23:15 and 2026-11-21T23:15 are", text)
}
