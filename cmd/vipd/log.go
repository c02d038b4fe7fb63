package main

import (
	"fmt"
	"io"
	"log/slog"
)

// newLog returns the program's logger, and makes libraries such as http.Server log through it.
// Lines for systemd's journal start with a priority. In text format, they contain neither time nor
// level, because the journal records both.
func newLog(to io.Writer, journal bool, level, format string) (*slog.Logger, error) {
	h, err := newHandler(to, journal, level, format)
	if err != nil {
		return nil, err
	}
	out := slog.New(h)
	slog.SetDefault(out)
	slog.SetLogLoggerLevel(slog.LevelWarn) // libraries use package log to report errors, such as a panic in an HTTP handler
	return out, nil
}

func newHandler(to io.Writer, journal bool, level, format string) (slog.Handler, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q is unknown; use debug, info, warn or error", level)
	}
	o := slog.HandlerOptions{Level: least}
	l := &line{to: to}
	if journal {
		to = l
	}
	var h slog.Handler
	switch format {
	case "text":
		if journal {
			o.ReplaceAttr = withoutTimeAndLevel
		}
		h = slog.NewTextHandler(to, &o)
	case "json":
		h = slog.NewJSONHandler(to, &o)
	default:
		return nil, fmt.Errorf("--log-format %q is unknown; use text or json", format)
	}
	if journal {
		h = forJournal{h, l}
	}
	return h, nil
}

func withoutTimeAndLevel(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
		return slog.Attr{}
	}
	return a
}
