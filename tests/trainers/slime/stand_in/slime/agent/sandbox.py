"""Sandboxes with the names of slime's own; the service that makes them is the caller's."""


class E2BSandbox:
    def __init__(self, image, *, size="md", service=None):
        self.image, self.size, self.service = image, size, service
        self._sb = None
        self.sandbox_id = ""

    async def __aenter__(self):
        self._sb = await self.service.create(self.image)
        self.sandbox_id = self._sb.sandbox_id
        return self

    async def __aexit__(self, exc_type, exc, tb):
        try:
            if self._sb is not None:
                await self._sb.kill()
        except Exception:
            self._sb = None

    async def exec(self, cmd, *, user="root", timeout=120):
        return await self._sb.run(cmd)
