package hooks

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"vipd/cmd/internal/events"
	"vipd/dataplane/probe/command"
)

const (
	// runTime bounds one run of a program.
	runTime = 30 * time.Second
	// mostWaiting is how many events wait for a hook at most.
	mostWaiting = 100
	// atOnce is how many events are taken from the history in one go.
	atOnce = 100
)

// kinds are the events that each hook is told of.
func kinds() map[string][]events.Kind {
	return map[string][]events.Kind{
		"on_health": {events.Health, events.Panic}, "on_mode": {events.Mode}, "on_vip": {events.VIP},
		"on_problem": {events.Problem, events.Store}, "on_drain": {events.Drain},
	}
}

// Options are what Run needs.
type Options struct {
	// Commands are the programs with their arguments, by the name of the hook.
	Commands map[string][]string
	// User is the user that they run as; "" means nobody.
	User string
	// Node is this host's name.
	Node   string
	Events *events.History
	Log    *slog.Logger
}

// Run runs the hooks for all events of the history until ctx ends. Programs that run then are killed.
func Run(ctx context.Context, o Options) error {
	var running sync.WaitGroup
	for name, args := range o.Commands {
		h := &hook{Options: o, name: name, kinds: kinds()[name], args: args}
		running.Go(func() { h.run(ctx) })
	}
	running.Wait()
	return nil
}

// hook is one program.
type hook struct {
	Options
	name  string
	kinds []events.Kind
	args  []string

	since   uint64 // the last event that was read
	waiting []events.Event
	// missed is how many events were left out since the last run, with those of other kinds that came too fast to be kept.
	missed int
}

func (h *hook) run(ctx context.Context) {
	if err := command.Trusted(h.args[0]); err != nil {
		h.Log.Warn("a hook is not run", "hook", h.name, "program", h.args[0], "err", err)
	}
	for ctx.Err() == nil {
		more := h.Events.Changed()
		h.read()
		if len(h.waiting) == 0 {
			select {
			case <-more:
			case <-ctx.Done():
			}
			continue
		}
		e := h.waiting[0]
		h.waiting = h.waiting[1:]
		if err := h.tell(ctx, e); err != nil && ctx.Err() == nil {
			h.Log.Warn("a hook failed", "hook", h.name, "program", h.args[0], "event", e.Seq, "err", err)
		}
	}
}

// read takes what is new in the history.
func (h *hook) read() {
	for {
		all, lost := h.Events.Read(h.since, atOnce)
		h.missed += int(lost)
		for _, e := range all {
			h.since = e.Seq
			if slices.Contains(h.kinds, e.Kind) {
				h.waiting = append(h.waiting, e)
			}
		}
		if over := len(h.waiting) - mostWaiting; over > 0 {
			h.Log.Warn("a hook is too slow for its events; the oldest are dropped", "hook", h.name, "program", h.args[0], "events", over)
			h.waiting = slices.Clone(h.waiting[over:])
			h.missed += over
		}
		if len(all) < atOnce {
			return
		}
	}
}

// told is what a program reads: an event as "vipctl events -o json" has it, and where it happened.
type told struct {
	Node string `json:"node"`
	Hook string `json:"hook"`
	// Missed is how many events were left out before this one, with those of other kinds that came too fast to be kept.
	Missed int `json:"missed,omitempty"`
	events.Event
}

// tell runs the program for one event.
func (h *hook) tell(ctx context.Context, e events.Event) error {
	input, err := json.Marshal(told{h.Node, h.name, h.missed, e})
	if err != nil {
		return fmt.Errorf("writing event %d: %w", e.Seq, err)
	}
	h.missed = 0
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	result, err := command.Command{Args: h.args, User: h.User, Env: h.environment(e), Input: append(input, '\n')}.Run(ctx)
	if err != nil {
		return err
	}
	if result.Err != nil {
		said := strings.Fields(cmp.Or(string(result.Complained), string(result.Printed)))
		return fmt.Errorf("%w: %s", result.Err, strings.Join(said, " "))
	}
	return nil
}

// environment is the event for programs that don't read JSON.
func (h *hook) environment(e events.Event) []string {
	var env []string
	for _, v := range [][2]string{
		{"NODE", h.Node}, {"HOOK", h.name}, {"SEQ", strconv.FormatUint(e.Seq, 10)}, {"AT", e.At.Format(time.RFC3339Nano)},
		{"KIND", string(e.Kind)}, {"LEVEL", e.Level.String()}, {"SERVICE", string(e.Service)}, {"ENDPOINT", e.Endpoint},
		{"TEXT", e.Text}, {"CAUSE", e.Cause}, {"WAS", e.Was},
	} {
		env = append(env, "VIPD_"+v[0]+"="+strings.ReplaceAll(v[1], "\x00", ""))
	}
	return env
}
