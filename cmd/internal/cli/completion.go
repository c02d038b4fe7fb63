package cli

// CompletionVerb returns the verb that prints the completion scripts.
func CompletionVerb() *Verb {
	shells := []string{"bash", "zsh", "fish"}
	return &Verb{
		Name: "completion", Args: "bash|zsh|fish", Brief: "print a script that completes vipctl's command lines in a shell",
		About: `Prints a completion script for the shell. After loading it, Tab completes
commands, flags, and names of services and endpoints. These names come from
the daemon or etcd, and are omitted if it can't be reached.

bash: source <(vipctl completion bash), in ~/.bashrc. zsh: source <(vipctl
completion zsh), in ~/.zshrc after compinit. fish: vipctl completion fish >
~/.config/fish/completions/vipctl.fish.`,
		Example: "source <(vipctl completion bash)",
		MinArgs: 1, MaxArgs: 1,
		Complete: InTurn(OneOf(shells...)),
		Run: func(c *Call) error {
			shell, err := Choice("the shell", c.Args[0], shells)
			if err != nil {
				return err
			}
			return c.Print(map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[shell])
		},
	}
}
