"""The shape of slime's trackers from 0.3.1 on."""


def init_tracking(args, primary=True, **kwargs):
    wandb_utils.init_wandb_primary(args, **kwargs)
