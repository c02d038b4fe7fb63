package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/execpath"
)

func main() {
	execpath.AddFolders()
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, stopToo := signal.NotifyContext(interrupted, syscall.SIGTERM)
	code := cli.Run(ctx, cli.ThisProcess(), verbs(), os.Args[1:])
	if code == cli.ExitInterrupted && interrupted.Err() == nil {
		code = cli.ExitTerminated
	}
	stopToo()
	stop()
	os.Exit(code)
}

// verbs returns all verbs, in the order in which the help lists them.
func verbs() []cli.Group {
	return []cli.Group{
		{Title: "Commands that show this host's services", Verbs: []*cli.Verb{
			statusVerb(), getVerb(), describeVerb(), connsVerb(), topVerb(), eventsVerb(), explainVerb(), diffVerb(),
		}},
		{Title: "Commands that change this host's services", Verbs: []*cli.Verb{
			checkVerb(), planVerb(), reloadVerb(), confirmVerb(), abortVerb(), drainVerb(), undrainVerb(), weightVerb(), checkNowVerb(), convertVerb(),
		}},
		{Title: "Commands for the fleet, with services in etcd", Verbs: []*cli.Verb{
			applyVerb(), deleteVerb(), exportVerb(), historyVerb(), rollbackVerb(), waitVerb(), registerVerb(), nodeVerb(), poolVerb(), vipVerb(), ownershipVerb(),
		}},
		{Title: "Commands for the host itself", Verbs: []*cli.Verb{
			doctorVerb(), realServerVerb(), cleanupVerb(), debugVerb(), cli.CompletionVerb(), versionVerb(), cli.CompleteVerb(),
		}},
	}
}
