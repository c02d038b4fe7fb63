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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, cli.ThisProcess(), os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, w cli.World, args []string) int { return cli.Run(ctx, w, verbs(), args) }

// verbs are all commands, in the order of help.
func verbs() []*cli.Verb {
	return []*cli.Verb{
		checkVerb(), planVerb(), convertVerb(), doctorVerb(), statusVerb(), getVerb(), describeVerb(), reloadVerb(), diffVerb(), connsVerb(), topVerb(), explainVerb(), eventsVerb(), checkNowVerb(),
		applyVerb(), deleteVerb(), exportVerb(), historyVerb(), rollbackVerb(), waitVerb(), registerVerb(), nodeVerb(), poolVerb(), vipVerb(), ownershipVerb(),
		drainVerb(), undrainVerb(), weightVerb(), cleanupVerb(), debugVerb(), cli.CompletionVerb(), versionVerb(), cli.CompleteVerb(),
	}
}
