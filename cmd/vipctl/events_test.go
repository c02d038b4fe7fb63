package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/events"
	"vipd/test/wait"
)

// TestEventsFollow follows events across a daemon restart, until it is interrupted. Old and new
// events must be shown, and lost events must be reported.
func TestEventsFollow(t *testing.T) {
	for _, form := range []string{"table", "json"} {
		t.Run(form, func(t *testing.T) {
			s := newSession(t)
			now := time.Date(2025, 3, 9, 23, 59, 59, 0, time.Local)
			s.Now = func() time.Time { return now }
			event := func(seq uint64, text string) api.Event {
				return api.Event{Seq: seq, At: now, Kind: events.Mode, Text: text}
			}
			s.fakeDaemon.events = []api.Event{event(1, "one"), event(2, "two")}
			socket := filepath.Join(t.TempDir(), "d.sock")
			first, stopFirst, err := serveFake(socket)
			if err != nil {
				t.Fatal(err)
			}
			first.events = s.fakeDaemon.events
			ctx, interrupt := context.WithTimeout(t.Context(), wait.Patience)
			defer interrupt()
			var stopNext func()
			seen := map[string]bool{}
			once := func(all, word string, then func()) {
				if strings.Contains(all, word) && !seen[word] {
					seen[word] = true
					then()
				}
			}
			s.out.written = func(all string) {
				once(all, "two", func() {
					first.change(func() { first.events, first.missed = append(first.events, event(3, "three")), 7 })
				})
				once(all, "three", func() { go stopFirst() })
				once(all, "four", interrupt)
			}
			s.err.written = func(all string) {
				once(all, "waiting for vipd", func() {
					next, stop, err := serveFake(socket)
					if err != nil {
						t.Error(err)
						interrupt()
						return
					}
					stopNext = stop
					next.change(func() { next.events = []api.Event{event(4, "four")} })
				})
			}
			code := s.run(ctx, "events", "-f", "-o", form, "--socket", socket)
			if stopNext != nil {
				stopNext()
			}
			if code != cli.ExitDone {
				t.Errorf("exit code = %d, want 0: %s", code, s.err)
			}
			want := "TIME      KIND      EVENT\n"
			for i, text := range []string{"one", "two", "three", "four"} {
				if form == "table" {
					want += "23:59:59  mode      " + text + "\n"
				} else {
					want = strings.TrimPrefix(want, "TIME      KIND      EVENT\n") + fmt.Sprintf(`{"seq":%d,"at":%q,"kind":"mode","level":"INFO","text":%q}`, i+1, now.Format(time.RFC3339Nano), text) + "\n"
				}
			}
			if got := s.out.String(); got != want {
				t.Errorf("stdout =\n%swant\n%s", got, want)
			}
			want = "vipctl: 7 events were lost before they could be shown\nvipctl: following events: vipd at " + socket +
				" cut the answer short; waiting for vipd\nvipctl: vipd answers again\n"
			if got := s.err.String(); got != want {
				t.Errorf("stderr =\n%swant\n%s", got, want)
			}
		})
	}
}

// TestMissedEvents formats messages about lost events. For a filtered list, the message must say
// that the lost events may be of any kind and service.
func TestMissedEvents(t *testing.T) {
	for query, want := range map[api.EventsQuery]string{
		{}:               "7 events were lost before they could be shown",
		{Service: "web"}: "7 events, of any kind and service, were lost before they were read",
		{Kind: "health"}: "7 events, of any kind and service, were lost before they were read",
	} {
		if got := (&eventList{query: query}).missed(7); got != want {
			t.Errorf("message for %+v = %q, want %q", query, got, want)
		}
	}
}

// TestEventsFollowOnlyNew runs "vipctl events -n 0 -f", which must show only new events.
func TestEventsFollowOnlyNew(t *testing.T) {
	s := newSession(t)
	s.fakeDaemon.events = []api.Event{{Seq: 1, At: time.Now(), Kind: events.Mode, Text: "old"}}
	ctx, interrupt := context.WithTimeout(t.Context(), wait.Patience)
	defer interrupt()
	s.out.written = func(all string) {
		if strings.Contains(all, "new") {
			interrupt()
		} else {
			s.change(func() {
				s.fakeDaemon.events = append(s.fakeDaemon.events, api.Event{Seq: 2, At: time.Now(), Kind: events.Mode, Text: "new"})
			})
		}
	}
	if code := s.run(ctx, "events", "-f", "-n", "0"); code != cli.ExitDone {
		t.Errorf("exit code = %d, want 0: %s", code, s.err)
	}
	if got := s.out.String(); strings.Contains(got, "old") || strings.Count(got, "\n") != 2 {
		t.Errorf("output =\n%s\nwant the title and the new event", got)
	}
}
