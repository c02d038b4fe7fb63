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
	// runTime is the timeout of a hook's program.
	runTime = 30 * time.Second
	// maxWaiting is the maximum number of events that wait for a hook.
	maxWaiting = 100
	// atOnce is the maximum number of events that are read from the history in one step.
	atOnce = 100
)

// kinds maps the name of each hook to the kinds of events for which it runs.
func kinds() map[string][]events.Kind {
	return map[string][]events.Kind{
		"on_health": {events.Health, events.Panic}, "on_mode": {events.Mode}, "on_vip": {events.VIP},
		"on_problem": {events.Problem, events.Store}, "on_drain": {events.Drain}, "on_names": {events.Names},
	}
}

// Options configures Run.
type Options struct {
	// Commands maps the name of each hook to its program and arguments.
	Commands map[string][]string
	// User is the user that runs the programs. If empty, the user is nobody.
	User string
	// Node is this host's name.
	Node   string
	Events *events.History
	Log    *slog.Logger
}

// Run runs the hooks for all events of the history until ctx is done, and then kills running
// programs.
func Run(ctx context.Context, o Options) error {
	var running sync.WaitGroup
	for name, args := range o.Commands {
		h := &hook{Options: o, name: name, kinds: kinds()[name], args: args}
		running.Go(func() { h.run(ctx) })
	}
	running.Wait()
	return nil
}

// hook is a program that runs for some kinds of events.
type hook struct {
	Options
	name  string
	kinds []events.Kind
	args  []string

	since   uint64 // number of the last event read
	waiting []events.Event
	// missed counts the events that were dropped since the program last ran. It includes events of
	// all kinds that the history dropped.
	missed int
}

func (h *hook) run(ctx context.Context) {
	if err := command.Trusted(h.args[0]); err != nil {
		h.Log.Warn("a hook can't be run", "hook", h.name, "program", h.args[0], "err", err)
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
		if err := h.runFor(ctx, e); err != nil && ctx.Err() == nil {
			h.Log.Warn("a hook failed", "hook", h.name, "program", h.args[0], "event", e.Seq, "err", err)
		}
	}
}

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
		if over := len(h.waiting) - maxWaiting; over > 0 {
			h.Log.Warn("a hook is too slow for its events; the oldest are dropped", "hook", h.name, "program", h.args[0], "events", over)
			h.waiting = slices.Clone(h.waiting[over:])
			h.missed += over
		}
		if len(all) < atOnce {
			return
		}
	}
}

// input is the JSON input of a program: an event as "vipctl events -o json" prints it, and the
// host's name.
type input struct {
	Node string `json:"node"`
	Hook string `json:"hook"`
	// Missed counts the events that were dropped before this event. It includes events of all kinds
	// that the history dropped.
	Missed int `json:"missed,omitempty"`
	events.Event
}

func (h *hook) runFor(ctx context.Context, e events.Event) error {
	input, err := json.Marshal(input{h.Node, h.name, h.missed, e})
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
		said := strings.Fields(cmp.Or(string(result.Stderr), string(result.Stdout)))
		return fmt.Errorf("%w: %s", result.Err, strings.Join(said, " "))
	}
	return nil
}

// environment returns environment variables that describe the event, for programs that do not parse
// JSON.
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
