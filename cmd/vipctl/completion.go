package main

func completionVerb() *verb {
	shells := []string{"bash", "zsh", "fish"}
	return &verb{
		name: "completion", args: "bash|zsh|fish", brief: "a script that completes vipctl's command lines in a shell",
		about: "Prints a script for the shell. Once it is loaded, Tab completes commands, flags, and the names of services " +
			"and endpoints, for which the daemon is asked; without a daemon those are left out.\n\n" +
			"bash: source <(vipctl completion bash), in ~/.bashrc. zsh: source <(vipctl completion zsh), in ~/.zshrc " +
			"after compinit. fish: vipctl completion fish > ~/.config/fish/completions/vipctl.fish.",
		example: "source <(vipctl completion bash)",
		least:   1, most: 1,
		complete: inTurn(oneOf(shells...)),
		run: func(c *call) error {
			shell, err := choice("the shell", c.args[0], shells)
			if err != nil {
				return err
			}
			return c.print(map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[shell])
		},
	}
}
