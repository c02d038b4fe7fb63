package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
)

// tried is what came of one mode.
type tried struct {
	mode modes.Mode
	// works is false, too, where the mode could not be tried.
	works, known bool
}

// checkModes tries every mode but the one in use, which needs no proof, and says what auto makes of that.
func checkModes(ctx context.Context, v *visit) {
	var all []tried
	for _, m := range v.Modes {
		if v.Status != nil && v.Status.Mode.InUse == string(m.Name) {
			v.add(fine(string(m.Name) + " mode is in use" + in(v.Status.Mode.Detail)))
			all = append(all, tried{m, true, true})
			continue
		}
		f, t := v.try(ctx, m)
		v.add(f)
		all = append(all, t)
	}
	v.serves = serving(v.Config.Mode, all)
	v.choice(all)
}

// serving is the mode that is taken where this one is wanted: itself if it works, or else the best that does; "" where
// one that comes before could not be tried.
func serving(wanted config.ModeName, all []tried) config.ModeName {
	for _, t := range all {
		if t.mode.Name == wanted && (t.works || !t.known) {
			return t.mode.Name
		}
	}
	for _, t := range all {
		if !t.known {
			return ""
		}
		if t.works {
			return t.mode.Name
		}
	}
	return ""
}

// choice says which mode auto takes.
func (v *visit) choice(all []tried) {
	wanted := v.Config.Mode
	if v.Status != nil {
		wanted = config.ModeName(v.Status.Mode.Wanted)
	}
	at := slices.IndexFunc(all, func(t tried) bool { return t.works })
	if wanted != config.AutoMode || at < 0 {
		return
	}
	best := all[at].mode.Name
	var not, unknown []string
	for _, t := range all[:at] {
		if t.known {
			not = append(not, string(t.mode.Name))
		} else {
			unknown = append(unknown, string(t.mode.Name))
		}
	}
	why := ""
	if len(not) > 0 {
		why = "better would be " + strings.Join(not, ", then ") + "; see above why not"
	}
	switch {
	case v.Status != nil && v.Status.Mode.InUse != string(best):
		v.add(note(fmt.Sprintf("auto would take %s mode now, and vipd uses %s", best, v.Status.Mode.InUse),
			"modes are tried when vipd starts and when it reloads", "vipctl reload"))
		return
	case len(unknown) > 0:
		v.add(note(fmt.Sprintf("auto takes %s mode unless a better one works, which is not known of %s", best, strings.Join(unknown, ", ")), why, ""))
		return
	}
	v.add(Finding{Level: OK, What: fmt.Sprintf("auto takes %s mode, the best that works here", best), Why: why})
}

// checkDaemon says how the running vipd is.
func checkDaemon(_ context.Context, v *visit) {
	if v.ConfigProblem != "" {
		v.add(problem("the configuration: "+v.ConfigProblem, "", "vipctl check "+v.ConfigFile))
	}
	if v.Status == nil {
		if held, err := v.Held(); err == nil && len(held) > 0 {
			v.add(problem(v.NoDaemon, fmt.Sprintf("VIPs that it put on this host are here still (%d): in userspace mode nobody answers there; "+
				"in other modes the kernel serves on, but nothing follows changes or failing endpoints", len(held)), "systemctl restart vipd"))
			return
		}
		v.add(note(v.NoDaemon, "what follows is of the host, and of what the configuration says", ""))
		return
	}
	v.add(fine(fmt.Sprintf("vipd %s runs on node %s", v.Status.Version, v.Status.Node)))
	if m := v.Status.Mode; m.Fallback {
		v.add(problem(fmt.Sprintf("vipd serves by %s mode, though %s is wanted: %s", m.InUse, m.Wanted, m.Reason),
			"modes differ in what they can do and cost", "vipctl reload  # when the reason is mended"))
	}
	grave := 0
	for _, p := range v.Status.Problems {
		if p.Severity != balancer.SeverityWarning {
			grave++
		}
	}
	if grave > 0 {
		v.add(warning(fmt.Sprintf("vipd reports problems (%d)", grave), "", "vipctl status"))
	}
}

// try makes a dataplane of the mode, and closes it without having given it anything to do.
func (v *visit) try(ctx context.Context, m modes.Mode) (Finding, tried) {
	if m.Forward && !v.Root {
		return note(fmt.Sprintf("%s mode was not tried: that takes root", m.Name), "", "sudo vipctl doctor"), tried{mode: m}
	}
	ctx, cancel := context.WithTimeout(ctx, modes.TrialTime)
	defer cancel()
	c, done, err := v.apart()
	if err != nil {
		return note(fmt.Sprintf("%s mode was not tried: %s", m.Name, oneLine(err)), "", ""), tried{mode: m}
	}
	defer done()
	d, err := m.New(ctx, c, slog.New(slog.DiscardHandler))
	if err == nil {
		detail := d.Traits().Detail
		if err = d.Close(ctx, true); err == nil {
			return fine(fmt.Sprintf("%s mode works here", m.Name) + in(detail)), tried{m, true, true}
		}
	}
	f := note(fmt.Sprintf("%s mode does not work here: %s", m.Name, oneLine(err)), "auto takes the next best", "")
	if v.Config.Mode == m.Name {
		f.Level, f.Why = Problem, "the configuration asks for it; vipd takes another one, or, with strict_mode, does not start"
	}
	if m.Name == config.IPVSMode && !v.NotLinux {
		why, mend := v.lack()
		if why != "" {
			f.Why = why + ". " + upper(f.Why)
		}
		f.Mend = mend
	}
	return f, tried{mode: m, known: true}
}

// apart returns a configuration for a trial, whose records are no running vipd's: two must not write the same ones.
func (v *visit) apart() (c config.Config, done func(), err error) {
	c, done = v.Config, func() {}
	if v.Status == nil {
		return c, done, nil
	}
	if c.RunDir, err = os.MkdirTemp("", "vipctl-doctor-"); err == nil {
		done = func() { _ = os.RemoveAll(c.RunDir) } // it is small
	}
	return c, done, err
}

// upper begins a sentence.
func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// in writes a detail in brackets.
func in(detail string) string {
	if detail == "" {
		return ""
	}
	return " (" + detail + ")"
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
