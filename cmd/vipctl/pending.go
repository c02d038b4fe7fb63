package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"vipd/balancer/lib/atomicfile"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
	"vipd/store/tomlfile"
)

func confirmVerb() *cli.Verb {
	return &cli.Verb{
		Name: "confirm", Brief: "keep a pending change",
		About: `Keeps the change that "vipctl reload --confirm" started on this host. It
replaces the configuration file by the new one in one step, with the same file
mode and owner. If the file has changed since, nothing is confirmed.

Without such a change, or with --etcd, it keeps the change that "vipctl apply
--confirm" started: it writes each service for all hosts in a transaction. If
someone else has changed one of these services since, nothing is written.`,
		Example: "vipctl confirm",
		Formats: []string{cli.FormTable, cli.FormJSON}, Fleet: true,
		Run: cli.Traced(runConfirm),
	}
}

func abortVerb() *cli.Verb {
	return &cli.Verb{
		Name: "abort", Brief: "revert a pending change now",
		About: `Reverts the change that "vipctl reload --confirm" started on this host,
without waiting for its deadline. Without such a change, or with --etcd, it
reverts the change that "vipctl apply --confirm" started.`,
		Example: "vipctl abort",
		Formats: []string{cli.FormTable, cli.FormJSON}, Fleet: true,
		Run: runAbort,
	}
}

// try starts a pending change to a file's text.
func try(c *cli.Call) error {
	within, place := c.Flags.Duration("confirm"), c.Flags.String("file")
	switch {
	case !c.Flags.IsSet("confirm"):
		return cli.WrongUse("-f needs --confirm; for example: vipctl reload --confirm 2m -f %s", place)
	case within <= 0:
		return cli.WrongUse("--confirm needs a time above 0, such as 2m")
	case c.Flags.Bool("prune") || c.Flags.Bool("allow-empty"):
		return cli.WrongUse("--confirm accepts only a file without errors: leave out --prune and --allow-empty")
	case place == "":
		return errors.New("there is nothing to confirm: vipd already uses the configuration in its files. To test a change, write it to another file, and run: vipctl reload --confirm 2m -f NEW")
	}
	name, text, err := readInput(c, place)
	if err != nil {
		return err
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	r, err := client.Try(c, api.PendingRequest{Name: name, Text: string(text), Within: within, By: operator(c)})
	if err != nil {
		return err
	}
	if r.Refused {
		err := c.Show(r, func() string {
			return problemLines(c.Printer, r.Problems) + fmt.Sprintf("%s: nothing was changed\n", wording.Count(len(r.Problems), "problem"))
		})
		return cmp.Or(err, cli.ErrReported)
	}
	return showReload(c, &r)
}

func runConfirm(c *cli.Call) error {
	return hereOrFleet(c, confirmFile, confirmFleet)
}

// hereOrFleet calls fleet if etcd is named explicitly, or if services are in etcd and this host's
// file has no pending change. Otherwise it calls here. Unless etcd is named, it returns an error if
// the daemon does not answer.
func hereOrFleet(c *cli.Call, here func(*cli.Call, *api.Client) error, fleet func(*cli.Call) error) error {
	if c.NamesEtcd() {
		return fleet(c)
	}
	s, err := cli.AskDaemon(c, (*api.Client).Status)
	ofFile := slices.ContainsFunc(s.Pending, func(p api.Pending) bool { return !p.InEtcd })
	switch inEtcd := c.StoresInEtcd(); {
	case err != nil && inEtcd:
		return fmt.Errorf("%w; \"vipctl %s\" with --etcd URL,... ends the change in etcd without this host's daemon", err, c.Verb.Name)
	case err != nil:
		return err
	case inEtcd && !ofFile:
		return fleet(c)
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	return here(c, client)
}

func confirmFile(c *cli.Call, client *api.Client) error {
	p, err := client.Pending(c)
	if err != nil {
		return err
	}
	now, err := tomlfile.ReadFile(p.Place)
	switch {
	case err != nil:
		return unreadable(p.Place, err)
	case string(now) == p.Text:
	case tomlfile.Sum(now) != p.Former:
		return fmt.Errorf("%s has changed since the pending change started, so it is not replaced; \"vipctl abort\" reverts the pending change", p.Place)
	default:
		if err := atomicfile.Replace(p.Place, []byte(p.Text)); err != nil {
			return fmt.Errorf("replacing %s: %w", p.Place, err)
		}
	}
	r, err := client.Reload(c, operator(c), api.ReloadConfirm)
	if err != nil {
		return fmt.Errorf("%s has the new content, but vipd does not answer: %w", p.Place, err)
	}
	if slices.ContainsFunc(r.Pending, func(q api.Pending) bool { return q.Place == p.Place }) {
		return errors.New("the change is still pending, because " + p.Place + " has changed again")
	}
	return c.Show(r, func() string { return "confirmed: " + p.Place + " has the new content\n" })
}

func runAbort(c *cli.Call) error {
	return hereOrFleet(c, abortFile, abortFleet)
}

func abortFile(c *cli.Call, client *api.Client) error {
	r, err := client.Abort(c, operator(c))
	if err != nil {
		return err
	}
	return showReload(c, &r)
}

// pendingText returns a clause for each pending change.
func pendingText(c *cli.Call, all []api.Pending) string {
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintf(&b, "; the change to %s will be reverted %s unless \"vipctl confirm\" keeps it", p.Place, ahead(c.Printer, p.Until))
	}
	return b.String()
}

// pending writes a line for each pending change.
func (out *sheet) pending(all []api.Pending) {
	label := "pending"
	for _, p := range all {
		by := ""
		if p.By != "" {
			by = " by " + p.By
		}
		if len(p.On) > 0 {
			by += " on " + strings.Join(p.On, ", ")
		}
		out.painted(label, fmt.Sprintf("%s was changed %s%s; it will be reverted at %s unless \"vipctl confirm\" keeps it",
			p.Place, ago(out.Printer, p.Since), by, p.Until.Local().Format(time.DateTime)), table.Notice)
		label = ""
	}
}
