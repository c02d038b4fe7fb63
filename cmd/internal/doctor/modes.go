package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
)

// trialTime bounds the trial of one mode.
const trialTime = 20 * time.Second

// checkModes tries every mode but the one in use, which needs no proof.
func checkModes(ctx context.Context, v *visit) []Finding {
	var found []Finding
	for _, name := range config.ModeName("").Values() {
		mode := config.ModeName(name)
		at := slices.IndexFunc(v.Modes, func(m modes.Mode) bool { return m.Name == mode })
		switch {
		case mode == config.AutoMode:
		case at < 0:
			found = append(found, v.unbuilt(mode))
		case v.Status != nil && v.Status.Mode.InUse == name:
			found = append(found, Finding{Level: OK, What: name + " mode is in use" + in(v.Status.Mode.Detail)})
		default:
			found = append(found, v.try(ctx, v.Modes[at]))
		}
	}
	return found
}

// checkDaemon says how the running vipd is.
func checkDaemon(_ context.Context, v *visit) []Finding {
	var found []Finding
	if v.ConfigProblem != "" {
		found = append(found, Finding{Level: Problem, What: "the configuration: " + v.ConfigProblem, Mend: "vipctl check " + v.ConfigFile})
	}
	if v.Status == nil {
		return append(found, Finding{Level: Note, What: v.NoDaemon, Why: "what follows is of the host, and of what the configuration says"})
	}
	found = append(found, Finding{Level: OK, What: fmt.Sprintf("vipd %s runs on node %s", v.Status.Version, v.Status.Node)})
	if m := v.Status.Mode; m.Fallback {
		found = append(found, Finding{
			Level: Problem, What: fmt.Sprintf("vipd serves by %s mode, though %s is wanted: %s", m.InUse, m.Wanted, m.Reason),
			Why: "modes differ in what they can do and cost", Mend: "systemctl restart vipd  # when the reason is mended",
		})
	}
	grave := 0
	for _, p := range v.Status.Problems {
		if p.Severity != balancer.SeverityWarning {
			grave++
		}
	}
	if grave > 0 {
		found = append(found, Finding{Level: Warning, What: fmt.Sprintf("vipd reports problems (%d)", grave), Mend: "vipctl status"})
	}
	return found
}

// try makes a dataplane of the mode, and closes it without having given it anything to do.
func (v *visit) try(ctx context.Context, m modes.Mode) Finding {
	if m.Forwards && !v.Root {
		return Finding{Level: Note, What: fmt.Sprintf("%s mode was not tried: that takes root", m.Name), Mend: "sudo vipctl doctor"}
	}
	ctx, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	d, err := m.New(ctx, v.Config, slog.New(slog.DiscardHandler))
	if err == nil {
		detail := ""
		if says, ok := d.(interface{ Detail() string }); ok {
			detail = says.Detail()
		}
		if err = d.Close(ctx, true); err == nil {
			return Finding{Level: OK, What: fmt.Sprintf("%s mode works here", m.Name) + in(detail)}
		}
	}
	f := Finding{Level: Note, What: fmt.Sprintf("%s mode does not work here: %s", m.Name, oneLine(err)), Why: "auto takes the next best"}
	if v.Config.Mode == m.Name {
		f.Level, f.Why = Problem, "the configuration asks for it; vipd takes another one, or, with strict_mode, does not start"
	}
	return f
}

// in writes a detail in brackets.
func in(detail string) string {
	if detail == "" {
		return ""
	}
	return " (" + detail + ")"
}

// unbuilt is the finding about a mode that this version does not have.
func (v *visit) unbuilt(mode config.ModeName) Finding {
	f := Finding{Level: Note, What: fmt.Sprintf("%s mode is not part of this version", mode)}
	if mode == config.IPVSMode {
		switch v.module("ip_vs") {
		case loaded:
			f.What += "; the kernel has IPVS"
		case loadable:
			f.What += "; the kernel can load IPVS"
		default:
			f.What += ", and no IPVS is seen in this kernel"
		}
	}
	if v.Config.Mode == mode {
		f.Level, f.Why = Problem, "the configuration asks for it"
		f.Mend = fmt.Sprintf("vipctl check --mode %s %s", v.Modes[0].Name, v.ConfigFile)
	}
	return f
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
