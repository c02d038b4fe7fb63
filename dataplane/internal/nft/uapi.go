package nft

// These are numbers from the kernel's interface: include/uapi/linux/netfilter/nf_tables.h,
// nfnetlink.h and netfilter.h of Linux 6.1. golang.org/x/sys/unix has only some of them, and only
// for Linux.
const (
	subsystem = 10 // NFNL_SUBSYS_NFTABLES

	batchBegin = 16 // NFNL_MSG_BATCH_BEGIN
	batchEnd   = 17 // NFNL_MSG_BATCH_END

	msgNewTable   = 0
	msgGetTable   = 1
	msgDelTable   = 2
	msgNewChain   = 3
	msgGetChain   = 4
	msgDelChain   = 5
	msgNewRule    = 6
	msgGetRule    = 7
	msgDelRule    = 8
	msgNewSet     = 9
	msgGetSet     = 10
	msgDelSet     = 11
	msgNewSetElem = 12
	msgGetSetElem = 13
	msgDelSetElem = 14
	msgNewGen     = 15
	msgGetGen     = 16

	msgNewFlowtable = 22
	msgGetFlowtable = 23
	msgDelFlowtable = 24

	flowtableTable   = 1
	flowtableName    = 2
	flowtableHook    = 3
	flowtableFlags   = 7
	flowtableDevices = 3 // NFTA_FLOWTABLE_HOOK_DEVS

	// These are the flags of messages (linux/netlink.h).
	flagRequest = 0x1
	flagAck     = 0x4
	flagEcho    = 0x8
	flagExcl    = 0x200
	flagCreate  = 0x400
	flagAppend  = 0x800

	tableName     = 1
	tableFlags    = 2
	tableDormant  = 0x1 // NFT_TABLE_F_DORMANT
	tableOwner    = 0x2 // NFT_TABLE_F_OWNER
	tablePersist  = 0x4 // NFT_TABLE_F_PERSIST, of Linux 6.9
	chainTable    = 1
	chainName     = 3
	chainHook     = 4
	chainPolicy   = 5
	chainUse      = 6
	chainType     = 7
	hookNum       = 1
	hookPriority  = 2
	hookDevice    = 3
	ruleTable     = 1
	ruleChain     = 2
	ruleHandle    = 3
	ruleExprs     = 4
	listElem      = 1 // NFTA_LIST_ELEM
	exprName      = 1
	exprData      = 2
	dataValue     = 1
	dataVerdict   = 2
	verdictCode   = 1
	verdictChain  = 2
	genID         = 1
	eventTable    = 1 // the table's name in events about any object: NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE, ..., and NFTA_TABLE_NAME
	policyAccept  = 1
	udataRuleText = 0 // the comment in a rule's or an element's user data (NFTNL_UDATA_RULE_COMMENT)

	setTable       = 1
	setName        = 2
	setFlags       = 3
	setKeyType     = 4
	setKeyLen      = 5
	setDataType    = 6
	setDataLen     = 7
	setDesc        = 9
	setID          = 10
	setUserdata    = 13
	setHandle      = 16
	setExpr        = 17
	descSize       = 1
	descConcat     = 2
	fieldLen       = 1
	elemsTable     = 1
	elemsSet       = 2
	elemsElements  = 3
	elemKey        = 1
	elemData       = 2
	elemTimeout    = 4
	elemExpiration = 5
	elemUserdata   = 6
	elemExpr       = 7
	elemKeyEnd     = 10
	elemExprs      = 11

	setInterval = 0x4
	setMap      = 0x8
	setHasTTL   = 0x10
	setEval     = 0x20
	setConcat   = 0x80

	// These are verdicts: the kernel's signed numbers, converted to unsigned.
	codeDrop   = 0
	codeAccept = 1
	codeReturn = 0xfffffffb
	codeGoto   = 0xfffffffc
	codeJump   = 0xfffffffd

	// The four registers of 16 bytes have the numbers 1 to 4. Their 32-bit parts have the numbers
	// from 8.
	regVerdict = 0
	reg32      = 8
)
