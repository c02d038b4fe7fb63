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

// trial is the result of trying a mode on this host.
type trial struct {
	mode modes.Mode
	// skipped is the reason why the mode could not be tried, or "". inUse reports whether the mode
	// is in use. The mode in use is not tried, because it is known to work.
	skipped string
	inUse   bool
	// detail describes the mode if it works. err is the reason if it does not.
	detail string
	err    error
}

func (t trial) known() bool { return t.skipped == "" }
func (t trial) works() bool { return t.known() && t.err == nil }

// tryModes tries every mode except the mode in use, and determines which mode vipd would use.
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

// try tries a mode: it creates the mode's dataplane, and closes it without applying anything.
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

// trialConfig returns the configuration for a trial. If vipd is running, trialConfig replaces
// run_dir with a temporary directory, so the trial does not touch vipd's records. The function done
// removes the directory.
func trialConfig(o *observed) (c config.Config, done func(), err error) {
	c, done = o.Config, func() {}
	if o.Status == nil {
		return c, done, nil
	}
	if c.RunDir, err = os.MkdirTemp("", "vipctl-doctor-"); err == nil {
		done = func() { _ = os.RemoveAll(c.RunDir) } // the directory is small, so it is harmless if it remains
	}
	return c, done, err
}

// serving returns the mode that vipd would use if wanted is the configured mode. It returns wanted
// if that mode works or could not be tried, and otherwise the best mode that works. It returns ""
// if no mode works, or if a better mode could not be tried.
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

// failedTrial returns the finding about a mode that does not work. It is a problem if this mode is
// configured, and otherwise a note.
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

// checkChoice reports which mode vipd uses or would use if the configured mode is auto.
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
		why = "auto would prefer " + strings.Join(not, ", then ") + "; the findings above show why it does not work"
	}
	switch {
	case o.Status != nil && o.Status.Mode.InUse != string(best):
		return []Finding{note(fmt.Sprintf("auto would use %s mode now, but vipd uses %s", best, o.Status.Mode.InUse),
			"vipd tries modes when it starts and when it reloads", "vipctl reload")}
	case len(unknown) > 0:
		return []Finding{note(fmt.Sprintf("auto uses %s mode unless a better mode works; not tried: %s", best, strings.Join(unknown, ", ")), why, "")}
	}
	return []Finding{{Level: OK, What: fmt.Sprintf("auto uses %s mode, the best mode that works here", best), Why: why}}
}

// Likely returns the mode that auto probably selects on a host, and the reason why it skips better
// modes. The function read reads a file on that host. Likely only looks for the module ip_vs and
// tries no mode, so vipd may select another mode.
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

func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// in returns detail in parentheses after a space, or "" if it is empty.
func in(detail string) string {
	if detail == "" {
		return ""
	}
	return " (" + detail + ")"
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
