package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/store"
	"vipd/store/tomlfile"
)

// Try starts a pending change to the configuration file. It refuses a new text that has errors. The
// argument by is the requester.
func (d *Daemon) Try(ctx context.Context, by string, q api.PendingRequest) (api.Reload, error) {
	if q.Within <= 0 {
		return api.Reload{}, errors.New("a pending change needs a time limit above 0 for its confirmation")
	}
	if problems := d.mistakes(&q); len(problems) > 0 {
		return api.Reload{Problems: problems, Refused: true}, nil
	}
	now := time.Now()
	p := &store.Pending{By: by, Since: now, Until: now.Add(q.Within), Text: q.Text}
	return d.Reload(ctx, signed("vipctl reload --confirm", by), tomlfile.Reload{Try: p})
}

// signed adds the author to the description of a command. If by is "", the author is unknown.
func signed(command, by string) string {
	if by == "" {
		return command
	}
	return command + " by " + by
}

// mistakes returns the errors in the new text in q. The errors name the new file instead of the
// configuration file.
func (d *Daemon) mistakes(q *api.PendingRequest) (errors []balancer.Problem) {
	read := tomlfile.LoadText(d.ConfigFile, []byte(q.Text))
	problems := read.Snapshot.Problems
	if read.Main != nil {
		problems = append(problems, settingsProblems(read.Main)...)
		problems = append(problems, tomlfile.Emptied(read.Main, d.stateDir)...)
	}
	for _, p := range problems {
		if p.Severity == balancer.SeverityError && p.Origin.File == d.ConfigFile {
			p.Origin.File = q.Name
			errors = append(errors, p)
		}
	}
	return errors
}

// pended records that a pending change was started, confirmed or reverted.
func (d *Daemon) pended(p *store.Pending, how store.Outcome, by string) {
	e := events.Event{Kind: events.Pending, Level: slog.LevelWarn}
	until := p.Until.Format(time.DateTime)
	command := "vipctl reload --confirm"
	kept := "the file contains it now"
	if p.Text == "" {
		command, kept = "vipctl apply --confirm", "its services are now in etcd"
	}
	switch how {
	case store.Started:
		e.Text = fmt.Sprintf("a change to %s is pending: it will be reverted at %s unless it is confirmed", p.Place, until)
		e.Cause = signed(command, by)
	case store.Confirmed:
		e.Level, e.Text = slog.LevelInfo, fmt.Sprintf("the pending change to %s is confirmed: %s", p.Place, kept)
		e.Cause = signed("vipctl confirm", by)
	case store.Aborted:
		e.Level = slog.LevelInfo
		e.Text = fmt.Sprintf("the pending change to %s is reverted", p.Place)
		e.Cause = signed("vipctl abort", by)
	case store.Expired:
		e.Text, e.Cause = fmt.Sprintf("the pending change to %s is reverted", p.Place), "it was not confirmed by "+until
	}
	if how != store.Started {
		e.Was, e.Lasted = "pending", time.Since(p.Since)
	}
	d.events.Record(e)
}
