package cli

// Completer lists the arguments that may follow the arguments in before. If the daemon or etcd does
// not answer, it lists nothing.
type Completer func(c *Call, before []string) []string

// InTurn completes the first argument with the first completer, the second argument with the
// second, and so on.
func InTurn(all ...Completer) Completer {
	return func(c *Call, before []string) []string {
		if len(before) < len(all) {
			return all[len(before)](c, before)
		}
		return nil
	}
}

// OneOf completes an argument from a list of words.
func OneOf(words ...string) Completer {
	return func(*Call, []string) []string { return words }
}
