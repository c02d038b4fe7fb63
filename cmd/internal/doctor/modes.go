package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
)

// trial is the result of a mode's trial.
type trial struct {
	mode modes.Mode
	// skipped is the reason why the mode was not tried, or "". The mode in use is not tried,
	// because it is known to work.
	skipped string
	inUse   bool
	// detail describes a mode that works. err is the reason why a mode does not work.
	detail string
	err    error
}

func (t trial) known() bool { return t.skipped == "" }
func (t trial) works() bool { return t.known() && t.err == nil }

// tryModes tries every mode except the mode in use, and predicts which mode vipd would use.
func (o *observed) tryModes(ctx context.Context) {
	for _, m := range o.Modes {
		if o.Status != nil && o.Status.Mode.InUse == string(m.Name) {
			o.trials = append(o.trials, trial{mode: m, inUse: true, detail: o.Status.Mode.Detail})
			continue
		}
		o.trials = append(o.trials, try(ctx, o, m))
	}
	o.serves = serving(o.Config.Mode, o.trials)
}

// try tries a mode: it creates a dataplane of the mode, and closes it without applying anything.
func try(ctx context.Context, o *observed, m modes.Mode) trial {
	t := trial{mode: m}
	if m.Forward && !o.Root {
		t.skipped = "only root can try it"
		return t
	}
	ctx, cancel := context.WithTimeout(ctx, modes.TrialTime)
	defer cancel()
	c, done, err := trialConfig(o)
	if err != nil {
		t.skipped = oneLine(err)
		return t
	}
	defer done()
	d, err := m.New(ctx, c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.err = err
		return t
	}
	t.detail, t.err = d.Traits().Detail, d.Close(ctx, true)
	return t
}

// trialConfig returns a configuration for a trial. If vipd runs, the trial keeps its records in a
// temporary directory, which done removes.
func trialConfig(o *observed) (c config.Config, done func(), err error) {
	c, done = o.Config, func() {}
	if o.Status == nil {
		return c, done, nil
	}
	if c.RunDir, err = os.MkdirTemp("", "vipctl-doctor-"); err == nil {
		done = func() { _ = os.RemoveAll(c.RunDir) } // the folder is small, so a leftover is harmless
	}
	return c, done, err
}

// serving returns the mode that vipd would use for a configured mode: the configured mode if it
// works, and otherwise the best mode that works. It returns "" if a better mode could not be tried.
func serving(wanted config.ModeName, all []trial) config.ModeName {
	for _, t := range all {
		if t.mode.Name == wanted && (t.works() || !t.known()) {
			return t.mode.Name
		}
	}
	for _, t := range all {
		if !t.known() {
			return ""
		}
		if t.works() {
			return t.mode.Name
		}
	}
	return ""
}

// checkModes returns a finding for each trial.
func checkModes(_ context.Context, o *observed) (found []Finding) {
	for _, t := range o.trials {
		switch {
		case t.inUse:
			found = append(found, fine(string(t.mode.Name)+" mode is in use"+in(t.detail)))
		case !t.known():
			more := ""
			if !o.Root {
				more = "sudo vipctl doctor"
			}
			found = append(found, note(fmt.Sprintf("%s mode was not tried: %s", t.mode.Name, t.skipped), "", more))
		case t.works():
			found = append(found, fine(fmt.Sprintf("%s mode works here", t.mode.Name)+in(t.detail)))
		default:
			found = append(found, failedTrial(o, t))
		}
	}
	return found
}

// failedTrial returns the finding about a mode that does not work.
func failedTrial(o *observed, t trial) Finding {
	f := note(fmt.Sprintf("%s mode does not work here: %s", t.mode.Name, oneLine(t.err)), "auto uses the next best mode", "")
	if o.Config.Mode == t.mode.Name {
		f.Level, f.Why = Problem, "the configuration sets this mode; vipd uses another mode or, with strict_mode, does not start"
	}
	if t.mode.Name == config.IPVSMode && !o.NotLinux {
		why, fix := missingIPVS(o.System)
		if why != "" {
			f.Why = why + ". " + upper(f.Why)
		}
		f.Fix = fix
	}
	return f
}

// checkChoice reports the mode that auto would use.
func checkChoice(_ context.Context, o *observed) []Finding {
	wanted := o.Config.Mode
	if o.Status != nil {
		wanted = config.ModeName(o.Status.Mode.Wanted)
	}
	first := slices.IndexFunc(o.trials, trial.works)
	if wanted != config.AutoMode || first < 0 {
		return nil
	}
	best := o.trials[first].mode.Name
	var not, unknown []string
	for _, t := range o.trials[:first] {
		if t.known() {
			not = append(not, string(t.mode.Name))
		} else {
			unknown = append(unknown, string(t.mode.Name))
		}
	}
	why := ""
	if len(not) > 0 {
		why = "better would be " + strings.Join(not, ", then ") + "; the reasons against are above"
	}
	switch {
	case o.Status != nil && o.Status.Mode.InUse != string(best):
		return []Finding{note(fmt.Sprintf("auto would use %s mode now, but vipd uses %s", best, o.Status.Mode.InUse),
			"vipd tries modes when it starts and when it reloads", "vipctl reload")}
	case len(unknown) > 0:
		return []Finding{note(fmt.Sprintf("auto uses %s mode unless a better mode works; not tried: %s", best, strings.Join(unknown, ", ")), why, "")}
	}
	return []Finding{{Level: OK, What: fmt.Sprintf("auto uses %s mode, the best that works here", best), Why: why}}
}

// Likely returns the mode that auto probably uses on a host whose files read returns, and the
// reason why it skips better modes. It tries no mode, so vipd may choose another.
func Likely(read func(path string) ([]byte, error)) (mode modes.Mode, why string) {
	s := System{ReadFile: read}
	for _, mode = range modes.All() {
		if mode.Name != config.IPVSMode || s.module("ip_vs") != unseen {
			break
		}
		why = "this kernel has no module ip_vs"
	}
	return mode, why
}

// upper capitalizes the first letter of text.
func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// in formats a detail in parentheses.
func in(detail string) string {
	if detail == "" {
		return ""
	}
	return " (" + detail + ")"
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
