"""A worker that takes its runs from Redis; its workflow and tasks are plain functions, each task in a thread.

pointsman worker redis_worker:worker     with REDIS_URL and POINTSMAN_SIGNING_SECRET

With POINTSMAN_URL and POINTSMAN_API_KEY as well it goes on by polling while Redis is away.
"""

import os
from datetime import timedelta

import msgspec

from endpoint_sdk import Retry, SyncRun, Worker, subscribers, task, task_context, workflow


class Video(msgspec.Struct, frozen=True):
    id: str
    widths: tuple[int, ...] = (480, 1080)


@task(retry=Retry.exponential(max_attempts=5, base=timedelta(milliseconds=200)), timeout=timedelta(minutes=10))
def transcode(video_id: str, width: int) -> str:
    """A `def` task cannot be stopped from outside: it looks whether it should."""
    for _ in range(10):
        if task_context().cancelled:
            raise TimeoutError("stopped between two frames")
    return f"{video_id}-{width}.mp4"


@task
def publish(video_id: str, files: list[str]) -> str:
    return f"/videos/{video_id}/{len(files)}"


@workflow("transcode-video", version="1.0.0")
def transcode_video(run: SyncRun, video: Video) -> str:
    # Side by side, each in a thread; what is recorded is not done again after a crash.
    pending = [run.submit(transcode, video.id, width) for width in video.widths]
    return run.task(publish, video.id, [each.result() for each in pending])


worker = Worker([transcode_video], subscriber=subscribers.redis(os.environ["REDIS_URL"]), max_concurrent_runs=20)
